select to_regnamespace($1)::text
