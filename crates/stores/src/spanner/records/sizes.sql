-- The keys after @after and the lengths of their values, at most @n, in the order of the keys.
SELECT rk, LENGTH(value) FROM hapax_record WHERE rk > @after ORDER BY rk LIMIT @n
