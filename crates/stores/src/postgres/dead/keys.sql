select distinct okey from hapax_dead
where source = $1
    and pg_catalog.sha256(okey) = any(
        array(select pg_catalog.sha256(asked.okey) from pg_catalog.unnest($2) asked(okey))
    )
    and okey = any($2)
