// For the examples: a begin, its grant, and the observation of a store one second after the grant.
{
    use hapax_core::machine::{Begin, Lapse, Observed, first_grant};
    use hapax_core::{Call, Millis, Owner, RecordKey, Seconds, Timestamp, Token};
    use std::time::Duration;

    let ask = Begin {
        call: Call::new(RecordKey::from_bytes([7; 16])),
        owner: Owner([1; 16]),
        lease: Millis(30_000),
        unknown_retention: Seconds(3600),
        on_lapse: Lapse::Hold,
    };
    let (begun, later) = (Timestamp(1_800_000_000_000_000), Duration::from_secs(1));
    let absent = Observed {
        record: None,
        lease_left: Duration::ZERO,
        life_left: Duration::ZERO,
        now: begun,
        token_high_water: Token(0),
    };
    let (change, grant) = first_grant(&ask, &absent);
    let seen = Observed {
        record: Some(change.record),
        lease_left: Duration::from(ask.lease) - later,
        life_left: Duration::from(change.lifetime) - later,
        now: begun.plus(later),
        token_high_water: grant.token,
    };
    (ask, grant, seen)
}
