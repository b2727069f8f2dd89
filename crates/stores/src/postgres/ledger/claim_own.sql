-- Claims the operation $2 with the fingerprint $3 and $4 in the namespace $1, in a transaction of the caller's own.
select hapax_claim_own($1, $2, $3, $4) as found
