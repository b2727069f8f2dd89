update hapax_parked set resumed_at = coalesce(resumed_at, ?2) where key = ?1
