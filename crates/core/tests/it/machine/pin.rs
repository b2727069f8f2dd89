//! The rows of the pin of a namespace.

use hapax_core::{Call, Identity};

use super::*;

fn grant() -> Grant {
    Grant { rk: RK, owner: ANN, token: TOKEN, attempt: 1, takeover: false, fingerprint: PAYLOAD }
}

#[test]
fn p1_accepts_the_process_that_writes_the_pin() {
    assert_eq!(pin_of_keyed(&Begun::Granted(grant())), Pinned::Yes);
    assert_eq!(pin_of_keyed(&Begun::Mine(grant())), Pinned::Yes);
}

#[test]
fn p2_accepts_the_secret_that_is_pinned() {
    let completion = Completion::whole(Bytes::new(), 6_000);
    assert_eq!(pin_of_keyed(&Begun::Replay(completion)), Pinned::Yes);
}

#[test]
fn p3_is_busy_while_another_process_writes_the_pin() {
    let lease_left = Duration::from_secs(3);
    assert_eq!(pin_of_keyed(&Begun::Busy(lease_left)), Pinned::Busy(lease_left));
}

#[test]
fn p4_refuses_another_secret() {
    assert_eq!(pin_of_keyed(&Begun::Mismatch), Pinned::OtherSecret);
}

#[test]
fn p5_refuses_a_pin_that_cannot_be_compared() {
    assert_eq!(pin_of_keyed(&Begun::Indeterminate(NOW)), Pinned::Unreadable);
    assert_eq!(pin_of_keyed(&Begun::Dead), Pinned::Unreadable);
}

fn plain_pin() -> Call {
    Identity::plain().pin("shop")
}

#[test]
fn p6_accepts_no_secret_in_a_namespace_without_one() {
    for seen in absences() {
        assert_eq!(pin_of_plain(&seen, &plain_pin()), Pinned::Yes);
    }
    for mut seen in presences() {
        seen.record.as_mut().unwrap().fingerprint = plain_pin().newest_fingerprint();
        assert_eq!(pin_of_plain(&seen, &plain_pin()), Pinned::Yes);
    }
}

#[test]
fn p7_refuses_no_secret_in_a_namespace_with_one() {
    let keyed = Identity::keyed([7; 32]).pin("shop").newest_fingerprint();
    for mut seen in presences() {
        seen.record.as_mut().unwrap().fingerprint = keyed;
        assert_eq!(pin_of_plain(&seen, &plain_pin()), Pinned::OtherSecret);
    }
}
