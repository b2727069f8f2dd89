//! A short run on real servers, and the same run without the inbox, which must fail.
//!
//! The relays are processes of `hapax`, which a test of the whole workspace builds.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::ops::RangeInclusive;
use std::process::ExitCode;

use hapax_relay_torture::{RelayFault, RelayTortureOptions, RelayTortureResult, SinkBroker};
use hapax_testkit::servers;

fn main() -> ExitCode {
    // A run needs both servers.
    let with = |broker| if servers::required(broker).is_ok() { "postgres" } else { broker };
    let (service, rabbitmq) = (with("nats"), with("rabbitmq"));
    servers::main([
        servers::test("no_fault_loses_an_event_or_its_place_or_repeats_its_effect", service, with_the_inbox),
        servers::test("no_fault_loses_an_event_or_its_place_on_rabbitmq", rabbitmq, on_rabbitmq),
        servers::test("the_audit_finds_second_effects_without_the_inbox", service, without_the_inbox),
        #[cfg(feature = "chaos")]
        servers::test("the_audit_finds_events_that_were_marked_and_not_published", service, with_a_known_bug),
    ])
}

/// A run with all faults.
fn options(events: u32) -> RelayTortureOptions {
    let faults = RelayFault::ALL.to_vec();
    let broker = SinkBroker::Nats;
    RelayTortureOptions { events, keys: events / 10, seed: 1, broker, faults, has_inbox: true, mutant: None }
}

async fn run(options: RelayTortureOptions) -> RelayTortureResult {
    let folder = tempfile::tempdir().unwrap();
    let result = hapax_relay_torture::run(&options, folder.path()).await;
    println!("{result:?}");
    let is_clean = result.as_ref().is_ok_and(|result| result.damages.is_empty());
    if options.has_inbox && options.mutant.is_none() && !is_clean {
        println!("the log of the relays is in {}", folder.keep().display());
    }
    result.unwrap()
}

async fn with_the_inbox() {
    let result = run(options(5000)).await;
    assert_eq!(result.damages, Vec::<String>::new());
    assert!(result.committed > 4000, "{result:?}");
}

async fn on_rabbitmq() {
    let result = run(RelayTortureOptions { broker: SinkBroker::RabbitMq, ..options(2000) }).await;
    assert_eq!(result.damages, Vec::<String>::new());
    assert!(result.committed > 1600, "{result:?}");
}

/// On a slow machine the fault of one run may meet no event.
const SEEDS: RangeInclusive<u64> = 1..=4;

async fn without_the_inbox() {
    let faults = vec![RelayFault::KillUnconfirmed, RelayFault::CutFromBroker];
    for seed in SEEDS {
        let result = run(RelayTortureOptions { faults: faults.clone(), has_inbox: false, seed, ..options(1000) }).await;
        if result.duplicates > 0 {
            return;
        }
    }
    panic!("no run has found a second effect");
}

#[cfg(feature = "chaos")]
async fn with_a_known_bug() {
    let faults = vec![RelayFault::KillUnsent];
    for seed in SEEDS {
        let mutant = Some("mark_before_publish".to_owned());
        let result = run(RelayTortureOptions { faults: faults.clone(), mutant, seed, ..options(1000) }).await;
        if result.damages.iter().any(|damage| damage.ends_with("never arrived")) {
            return;
        }
    }
    panic!("no run has found a lost event");
}
