//! Records that lapse under `Retry`: many begin at once, and whoever had it asks for it still.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::machine::{Begin, Begun, Claim, Completed, Grant, Lapse, Renewed};
use hapax_core::store::Protocol;
use hapax_core::{Owner, Result};
use hapax_stores::Redis;
use hapax_testkit::Step;
use hapax_testkit::proxy::{Fault, Moment, Proxy};
use hapax_testkit::servers::{Kind, RedisServer};
use libtest_mimic::Trial;

use crate::accounts::PATIENCE;
use crate::world::{Operation, behind, patiently, start, store, test};

const KEYS: usize = 60;

/// How many begin each key at once.
const RACERS: usize = 6;

const ROUNDS: usize = 6;

/// What the one who had it answers in the end.
const LATE: &str = "late";

/// A little more than a lease.
const LAPSE: Duration = Duration::from_secs(31);

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        [
            test("of_many_one_takes_a_lapsed_record_over", kind.name(), move || raced(kind, Trouble::None)),
            test("of_many_one_takes_over_though_replies_are_lost", kind.name(), move || raced(kind, Trouble::Cuts)),
            test("of_many_one_takes_over_though_the_server_is_killed", kind.name(), move || {
                raced(kind, Trouble::Kills)
            }),
        ]
    });
    each.collect()
}

/// What happens to the server and its connections meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// Half of the racers have their connection cut after a command was carried out and before its reply.
    Cuts,
    /// It is killed, and comes back with its log.
    Kills,
}

/// What the one who had it asks for, late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Renewal,
    Completion,
    Nothing,
}

/// What became of the record of one key in one round.
struct Ended {
    /// Who was granted it anew.
    granted: Vec<Grant>,
    /// Whether the one who had it was told that it keeps it, or that its answer is recorded.
    kept: bool,
}

struct World {
    server: RedisServer,
    proxy: Proxy,
    stores: [Arc<Redis>; 2],
}

async fn raced(kind: Kind, trouble: Trouble) {
    let server = start(kind, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (proxy, other) = behind(&server).await;
    let world = World { stores: [store(&server.url()), other], server, proxy };
    let operations: Vec<_> = (0..KEYS).map(|key| Operation::new(&format!("{trouble:?} {key}"))).collect();
    let mut holders = Vec::new();
    for operation in &operations {
        holders.push(Some(operation.granted(&*world.stores[0], Owner([0xff; 16])).await));
    }
    let mut tokens: Vec<BTreeSet<u64>> = holders.iter().flatten().map(|grant| [grant.token.0].into()).collect();
    let (mut taken, mut kept) = (0, 0);
    for round in 0..ROUNDS {
        world.server.step_clock(Step::Forward(LAPSE)).unwrap();
        for (key, ended) in world.round(round, trouble, &operations, &holders).await {
            let Some(former) = holders[key] else { panic!("a key that was completed is not raced for") };
            let context = format!("round {round}, key {key}: {:?} beside {former:?}", ended.granted);
            kept += usize::from(ended.kept);
            for grant in &ended.granted {
                let newest = tokens[key].last().copied();
                assert!(grant.takeover && Some(grant.token.0) > newest, "{context}");
                tokens[key].insert(grant.token.0);
                taken += 1;
            }
            if late(round, key) == Late::Completion {
                assert!(ended.kept && ended.granted.len() <= 1, "{context}");
                world.is_answered(operations[key], ended.granted.first()).await;
                holders[key] = None;
            } else {
                assert_eq!(ended.granted.len() + usize::from(ended.kept), 1, "{context}");
                holders[key] = ended.granted.first().copied().or(holders[key]);
            }
        }
    }
    println!("{} {trouble:?}: {taken} takeovers, {kept} times the former attempt was first", kind.name());
    assert!(taken >= KEYS && kept >= KEYS / 2, "{taken} and {kept} are too few to tell");
    assert_eq!(world.proxy.counts().cuts > 0, trouble == Trouble::Cuts);
}

/// What is asked for late changes from round to round and from key to key.
fn late(round: usize, key: usize) -> Late {
    match (round + key) % 8 {
        0 | 3 | 6 => Late::Renewal,
        1 => Late::Completion,
        _ => Late::Nothing,
    }
}

impl World {
    /// Everyone at once; half of the keys hear first of those who want them, the others of the one who had them.
    async fn round(
        &self,
        round: usize,
        trouble: Trouble,
        operations: &[Operation],
        holders: &[Option<Grant>],
    ) -> Vec<(usize, Ended)> {
        let keys = (0..KEYS).filter_map(|key| Some((key, holders[key]?)));
        let races = keys.map(|(key, former)| self.race(round, key, (operations[key], former)));
        let (ended, ()) = tokio::join!(join_all(races), self.suffer(trouble));
        ended
    }

    async fn suffer(&self, trouble: Trouble) {
        match trouble {
            Trouble::None => {}
            Trouble::Cuts => {
                for command in ["EVALSHA", "SET"] {
                    self.proxy.inject(Fault::cut(Moment::Answered, command).after(2).times(2));
                }
            }
            Trouble::Kills => self.server.restart().await.unwrap(),
        }
    }

    /// An effect that is known beats an attempt that runs: its answer stands, and nobody's after it.
    async fn is_answered(&self, operation: Operation, taker: Option<&Grant>) {
        let store = &*self.stores[0];
        operation.replays(store, LATE).await;
        if let Some(grant) = taker {
            let completed = operation.complete(store, grant, "the taker's").await.unwrap();
            assert!(matches!(completed, Completed::Lost(_)), "{completed:?}");
            operation.replays(store, LATE).await;
        }
    }

    async fn race(&self, round: usize, key: usize, (operation, former): (Operation, Grant)) -> (usize, Ended) {
        let racers = (0..RACERS).map(|racer| self.takes_over(round, racer, operation));
        let late: BoxFuture<'_, bool> = Box::pin(self.asks_late(operation, former, late(round, key)));
        let (granted, kept) = if key.is_multiple_of(2) {
            tokio::join!(biased; join_all(racers), late)
        } else {
            let (kept, granted) = tokio::join!(biased; late, join_all(racers));
            (granted, kept)
        };
        (key, Ended { granted: granted.into_iter().flatten().collect(), kept })
    }

    async fn takes_over(&self, round: usize, racer: usize, operation: Operation) -> Option<Grant> {
        let mut owner = [0; 16];
        owner[0] = u8::try_from(round).unwrap();
        owner[1] = u8::try_from(racer).unwrap();
        let ask = Begin { on_lapse: Lapse::Retry, ..operation.ask(Owner(owner)) };
        let store = &*self.stores[racer % 2];
        match stubbornly(|| async { Protocol::over(store).begin(&ask).await }).await {
            Begun::Granted(grant) | Begun::Mine(grant) => Some(grant),
            Begun::Busy(_) | Begun::Replay(_) => None,
            other @ (Begun::Mismatch | Begun::Indeterminate(_) | Begun::Dead) => panic!("{operation:?}: {other:?}"),
        }
    }

    /// Whether it is still the one's who had it.
    async fn asks_late(&self, operation: Operation, former: Grant, late: Late) -> bool {
        let (store, rk) = (&*self.stores[1], operation.0.record_key());
        match late {
            Late::Renewal => {
                let claim = Claim::from(&former);
                match stubbornly(|| async { Protocol::over(store).renew(&rk, &claim).await }).await {
                    Renewed::Yes => true,
                    Renewed::Lost => false,
                    Renewed::Gone => panic!("{operation:?}: the record is gone"),
                }
            }
            Late::Completion => match stubbornly(|| operation.complete(store, &former, LATE)).await {
                Completed::Done | Completed::Already => true,
                Completed::Lost(_) => false,
                other @ (Completed::Recreated | Completed::Gone) => panic!("{operation:?}: {other:?}"),
            },
            Late::Nothing => false,
        }
    }
}

/// Asks until there is an answer, and never takes an error for one.
async fn stubbornly<T, F>(mut call: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T>>,
{
    loop {
        match patiently(PATIENCE, call()).await {
            Some(Ok(answer)) => return answer,
            Some(Err(error)) => assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}"),
            None => {}
        }
        tokio::task::yield_now().await;
    }
}
