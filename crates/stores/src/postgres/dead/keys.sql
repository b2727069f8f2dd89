select distinct okey from hapax_dead where source = $1 and okey = any($2)
