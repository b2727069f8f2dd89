//! What a handler may return: any kind of error by `?`, and answers of its own types.

use std::error::Error as _;

use hapax_core::BoxError;
use hapax_core::gate::{Failure, Reason, Refused};

/// Returns the text of the error behind an unknown outcome.
fn unknown(result: Result<(), Failure<String>>) -> String {
    let Err(Failure::Unknown(detail)) = result else { panic!("the outcome is not unknown: {result:?}") };
    let mut refused = Refused::from(Reason::Unrecorded);
    refused.detail = Some(detail);
    refused.source().unwrap().to_string()
}

#[test]
fn every_kind_of_error_becomes_an_unknown_outcome_by_question_mark() {
    assert_eq!(unknown((|| Ok(Err("a text")?))()), "a text");
    assert_eq!(unknown((|| Ok(Err(String::from("a longer text"))?))()), "a longer text");
    assert_eq!(unknown((|| Ok(Err(std::io::Error::other("the system's"))?))()), "the system's");
    assert_eq!(unknown((|| Ok(Err(BoxError::from("boxed"))?))()), "boxed");
    assert_eq!(unknown((|| Ok(Err(anyhow::anyhow!("anyhow's"))?))()), "anyhow's");
}

#[test]
fn every_kind_of_error_may_be_the_detail_of_a_failure() {
    let failures: [Failure<String>; 3] = [
        Failure::not_applied("the provider is closed"),
        Failure::denied(anyhow::anyhow!("this account may not pay")),
        Failure::unknown(BoxError::from("the connection broke")),
    ];
    assert!(matches!(failures, [Failure::NotApplied(_), Failure::Denied(_), Failure::Unknown(_)]));
}

#[cfg(feature = "json")]
mod json {
    use hapax_core::gate::Json;
    use serde::{Deserialize, Serialize};

    use crate::world::{GateWorld, call};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Charge {
        number: u32,
    }

    #[tokio::test]
    async fn an_answer_of_a_type_of_serde_is_replayed() {
        let world = GateWorld::new();
        for number in 1..=2 {
            let run = world.gate.run(call(), async move |_| Ok(Json(Charge { number })));
            assert_eq!(run.await.expect("the call has an answer").answer, Json(Charge { number: 1 }));
        }
        let stored = world.read().await.record.unwrap();
        assert!(format!("{stored:?}").contains("number"), "the answer is stored as JSON: {stored:?}");
    }
}
