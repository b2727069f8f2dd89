select to_regclass($1)::text
