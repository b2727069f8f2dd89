-- An index entry has at most 2,704 bytes, and an ordering key may have more. So the index has the hash of a key.
drop index hapax_dead_keys;

create index hapax_dead_keys on hapax_dead (source, sha256(okey)) where okey is not null;
