select distinct okey from hapax_dead
where source = $1 and sha256(okey) = any(array(select sha256(asked.okey) from unnest($2::bytea[]) asked(okey)))
    and okey = any($2)
