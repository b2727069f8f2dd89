//! Lapsed records under the policy `Retry`: many attempts begin at once while the former holder renews or completes
//! late.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::machine::{Begin, Begun, Claim, Completed, Grant, Lapse, Renewed};
use hapax_core::store::Protocol;
use hapax_core::{Owner, Result};
use hapax_stores::Redis;
use hapax_testkit::ClockStep;
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{RedisKind, RedisServer};
use libtest_mimic::Trial;

use crate::grant_audit::CALL_TIMEOUT;
use crate::support::{Operation, start, store, store_behind_proxy, test, with_timeout};

const KEYS: usize = 60;

/// How many attempts begin each key at once.
const RACERS: usize = 6;

const ROUNDS: usize = 6;

/// The answer of a late completion by the former holder.
const LATE_ANSWER: &str = "late";

/// A little more than a lease.
const LAPSE: Duration = Duration::from_secs(31);

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        [
            test("one_of_many_takes_over_a_lapsed_record", kind.name(), move || race_rounds(kind, Disruption::None)),
            test("one_of_many_takes_over_while_replies_are_lost", kind.name(), move || {
                race_rounds(kind, Disruption::Cuts)
            }),
            test("one_of_many_takes_over_while_the_server_is_killed", kind.name(), move || {
                race_rounds(kind, Disruption::Kills)
            }),
        ]
    });
    each.collect()
}

/// What happens to the server and its connections during a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disruption {
    None,
    /// The connection of half of the racers is cut after a command was applied and before its reply.
    Cuts,
    /// The server is killed, and restarted with its append-only file.
    Kills,
}

/// The late call of the former holder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LateCall {
    Renewal,
    Completion,
    Nothing,
}

/// The outcome of one key in one round.
struct RaceOutcome {
    /// The grants that are takeovers.
    granted: Vec<Grant>,
    /// Whether the former holder still owns the record after its late call.
    former_keeps: bool,
}

struct TakeoverRace {
    server: RedisServer,
    proxy: Proxy,
    stores: [Arc<Redis>; 2],
}

async fn race_rounds(kind: RedisKind, disruption: Disruption) {
    let server = start(kind, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (proxy, other) = store_behind_proxy(&server).await;
    let race = TakeoverRace { stores: [store(&server.url()), other], server, proxy };
    let operations: Vec<_> = (0..KEYS).map(|key| Operation::new(&format!("{disruption:?} {key}"))).collect();
    let mut holders = Vec::new();
    for operation in &operations {
        holders.push(Some(operation.grant(&*race.stores[0], Owner([0xff; 16])).await));
    }
    let mut tokens: Vec<BTreeSet<u64>> = holders.iter().flatten().map(|grant| [grant.token.0].into()).collect();
    let (mut taken, mut former_kept) = (0, 0);
    for round in 0..ROUNDS {
        race.server.step_clock(ClockStep::Forward(LAPSE)).unwrap();
        for (key, ended) in race.round(round, disruption, &operations, &holders).await {
            let Some(former) = holders[key] else { panic!("no attempt begins a completed key") };
            let context = format!("round {round}, key {key}: {:?} beside {former:?}", ended.granted);
            former_kept += usize::from(ended.former_keeps);
            for grant in &ended.granted {
                let newest = tokens[key].last().copied();
                assert!(grant.takeover && Some(grant.token.0) > newest, "{context}");
                tokens[key].insert(grant.token.0);
                taken += 1;
            }
            if late_call(round, key) == LateCall::Completion {
                // A completion wins over a takeover, also if the takeover was granted first.
                assert!(ended.former_keeps && ended.granted.len() <= 1, "{context}");
                race.assert_late_answer_stands(operations[key], ended.granted.first()).await;
                holders[key] = None;
            } else {
                assert_eq!(ended.granted.len() + usize::from(ended.former_keeps), 1, "{context}");
                holders[key] = ended.granted.first().copied().or(holders[key]);
            }
        }
    }
    println!("{} {disruption:?}: {taken} takeovers, {former_kept} times the former holder came first", kind.name());
    // With too few of either, the rounds would not have raced.
    assert!(taken >= KEYS && former_kept >= KEYS / 2, "{taken} takeovers, {former_kept} successful late calls");
    assert_eq!(race.proxy.counts().cuts > 0, disruption == Disruption::Cuts);
}

/// The late call varies with the round and the key.
fn late_call(round: usize, key: usize) -> LateCall {
    match (round + key) % 8 {
        0 | 3 | 6 => LateCall::Renewal,
        1 => LateCall::Completion,
        _ => LateCall::Nothing,
    }
}

impl TakeoverRace {
    /// Races for all keys at once. For half of the keys the takeovers are sent first, for the others the late call.
    async fn round(
        &self,
        round: usize,
        disruption: Disruption,
        operations: &[Operation],
        holders: &[Option<Grant>],
    ) -> Vec<(usize, RaceOutcome)> {
        let keys = (0..KEYS).filter_map(|key| Some((key, holders[key]?)));
        let races = keys.map(|(key, former)| self.race(round, key, (operations[key], former)));
        let (ended, ()) = tokio::join!(join_all(races), self.disrupt(disruption));
        ended
    }

    async fn disrupt(&self, disruption: Disruption) {
        match disruption {
            Disruption::None => {}
            Disruption::Cuts => {
                for command in ["EVALSHA", "SET"] {
                    self.proxy.inject(NetworkFault::cut(CutPoint::Answered, command).after(2).times(2));
                }
            }
            Disruption::Kills => self.server.restart().await.unwrap(),
        }
    }

    /// The late completion's answer is recorded, and a completion of the attempt that took over is lost.
    async fn assert_late_answer_stands(&self, operation: Operation, takeover: Option<&Grant>) {
        let store = &*self.stores[0];
        operation.assert_replays(store, LATE_ANSWER).await;
        if let Some(grant) = takeover {
            let completed = operation.complete(store, grant, "the takeover's answer").await.unwrap();
            assert!(matches!(completed, Completed::Lost(_)), "{completed:?}");
            operation.assert_replays(store, LATE_ANSWER).await;
        }
    }

    async fn race(&self, round: usize, key: usize, (operation, former): (Operation, Grant)) -> (usize, RaceOutcome) {
        let racers = (0..RACERS).map(|racer| self.take_over(round, racer, operation));
        let late: BoxFuture<'_, bool> = Box::pin(self.call_late(operation, former, late_call(round, key)));
        let (granted, former_keeps) = if key.is_multiple_of(2) {
            tokio::join!(biased; join_all(racers), late)
        } else {
            let (former_keeps, granted) = tokio::join!(biased; late, join_all(racers));
            (granted, former_keeps)
        };
        (key, RaceOutcome { granted: granted.into_iter().flatten().collect(), former_keeps })
    }

    async fn take_over(&self, round: usize, racer: usize, operation: Operation) -> Option<Grant> {
        let mut owner = [0; 16];
        owner[0] = u8::try_from(round).unwrap();
        owner[1] = u8::try_from(racer).unwrap();
        let ask = Begin { on_lapse: Lapse::Retry, ..operation.ask(Owner(owner)) };
        let store = &*self.stores[racer % 2];
        match retry(|| async { Protocol::over(store).begin(&ask).await }).await {
            Begun::Granted(grant) | Begun::Mine(grant) => Some(grant),
            Begun::Busy(_) | Begun::Replay(_) => None,
            other @ (Begun::Mismatch | Begun::Indeterminate(_) | Begun::Dead) => panic!("{operation:?}: {other:?}"),
        }
    }

    /// Makes the former holder's late call. Returns whether the holder still owns the record.
    async fn call_late(&self, operation: Operation, former: Grant, late: LateCall) -> bool {
        let (store, rk) = (&*self.stores[1], operation.0.record_key());
        match late {
            LateCall::Renewal => {
                let claim = Claim::from(&former);
                match retry(|| async { Protocol::over(store).renew(&rk, &claim).await }).await {
                    Renewed::Yes => true,
                    Renewed::Lost => false,
                    Renewed::Gone => panic!("{operation:?}: the record is gone"),
                }
            }
            LateCall::Completion => match retry(|| operation.complete(store, &former, LATE_ANSWER)).await {
                Completed::Done | Completed::Already => true,
                Completed::Lost(_) => false,
                other @ (Completed::Recreated | Completed::Gone) => panic!("{operation:?}: {other:?}"),
            },
            LateCall::Nothing => false,
        }
    }
}

/// Repeats the call until it succeeds.
async fn retry<T, F>(mut call: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T>>,
{
    loop {
        match with_timeout(CALL_TIMEOUT, call()).await {
            Some(Ok(answer)) => return answer,
            Some(Err(error)) => assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}"),
            None => {}
        }
        hapax_testkit::pause().await;
    }
}
