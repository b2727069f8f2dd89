use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Begin, Begun, Claim, Complete, Completed, Grant, Observed, Verdict};
use hapax_core::store::Protocol;
use hapax_core::{
    Call, Fingerprint, Identity, Millis, Record, RecordKey, Result, Rule, Seconds, State, Store, Timestamp, Token,
};

use super::step::ProtocolCall;

const LEASE: Millis = Millis(30_000);
const UNKNOWN: Seconds = Seconds(7 * 24 * 3600);
const RETENTION: Seconds = Seconds(24 * 3600);
const RELEASED: Seconds = Seconds(6 * 3600);
const DEAD: Seconds = Seconds(5 * 24 * 3600);

/// Runs calls on one of the two stores, and remembers its grants and tokens.
pub(super) struct StoreDriver {
    store: Arc<dyn Store>,
    keys: [RecordKey; 2],
    grants: Vec<Grant>,
    /// The tokens of each key, in the order of their appearance. The protocol does not order tokens of different keys.
    tokens: [Vec<Token>; 2],
}

/// A reply in a form that does not depend on the store's tokens and clock.
#[derive(Debug, Default)]
pub(super) struct ReplySummary {
    pub(super) text: String,
    /// Remaining times.
    pub(super) durations: Vec<Duration>,
}

impl StoreDriver {
    pub(super) fn new(store: Arc<dyn Store>, keys: [RecordKey; 2]) -> Self {
        Self { store, keys, grants: Vec::new(), tokens: Default::default() }
    }

    pub(super) fn key(&self, key: usize) -> RecordKey {
        self.keys[key]
    }

    pub(super) fn grants(&self) -> usize {
        self.grants.len()
    }

    pub(super) fn tokens(&self) -> [usize; 2] {
        [0, 1].map(|key| self.tokens[key].len())
    }

    pub(super) async fn observe(&self, key: usize) -> Observed {
        self.store.read(&self.keys[key]).await.expect("the read failed")
    }

    /// Whether the key's record exists, whether its lease runs, and whether that has more time left than it is long.
    pub(super) async fn phase(&self, key: usize) -> [bool; 3] {
        let seen = self.observe(key).await;
        let holding = seen.live().and_then(|record| record.state.holding());
        let is_early = holding.is_some_and(|holding| seen.lease_left > holding.lease.into());
        [seen.live().is_some(), !seen.lease_left.is_zero(), is_early]
    }

    /// The index of this record key.
    fn index_of(&self, rk: &RecordKey) -> usize {
        usize::from(*rk == self.keys[1])
    }

    /// The index of the key that the call is about.
    pub(super) fn key_of(&self, call: &ProtocolCall) -> usize {
        match call {
            ProtocolCall::Begin { key, .. }
            | ProtocolCall::Cancel { key, .. }
            | ProtocolCall::Hold { key, .. }
            | ProtocolCall::ResolveDone { key, .. }
            | ProtocolCall::ResolveNotDone { key, .. }
            | ProtocolCall::Reopen { key, .. } => *key,
            ProtocolCall::Renew { grant }
            | ProtocolCall::Complete { grant, .. }
            | ProtocolCall::Release { grant }
            | ProtocolCall::Abandon { grant }
            | ProtocolCall::Bury { grant } => self.index_of(&self.grants[*grant].rk),
        }
    }

    /// Summarizes the live record of this key.
    pub(super) async fn summarize_record(&mut self, key: usize) -> (ReplySummary, Option<Record>) {
        let seen = self.observe(key).await;
        let Some(record) = seen.live().cloned() else { return (ReplySummary::default(), None) };
        let mut summary = self.summarize(key, &record);
        summary.durations.extend([seen.lease_left, seen.life_left]);
        (summary, Some(record))
    }

    /// Runs a call and summarizes its reply.
    pub(super) async fn execute(&mut self, call: &ProtocolCall) -> ReplySummary {
        let store = Arc::clone(&self.store);
        let protocol = Protocol::over(&*store);
        let grant = |number: usize| self.grants[number];
        match call {
            ProtocolCall::Begin { .. } => self.summarize_begin(protocol.begin(&self.begin(call)).await),
            ProtocolCall::Renew { grant: n } => {
                summarize_debug(protocol.renew(&grant(*n).rk, &Claim::from(&grant(*n))).await)
            }
            ProtocolCall::Complete { grant: n, answer, is_old } => {
                let reply = protocol.complete(&grant(*n).rk, &completion(&grant(*n), *answer, *is_old)).await;
                self.summarize_completion(self.index_of(&grant(*n).rk), reply)
            }
            ProtocolCall::Release { grant: n } => {
                summarize_debug(protocol.release(&grant(*n).rk, &Claim::from(&grant(*n)), RELEASED).await)
            }
            ProtocolCall::Cancel { key, owner } => {
                summarize_debug(protocol.cancel(&self.keys[*key], *owner, RELEASED).await)
            }
            ProtocolCall::Abandon { grant: n } => {
                summarize_debug(protocol.abandon(&grant(*n).rk, &Claim::from(&grant(*n))).await)
            }
            ProtocolCall::Bury { grant: n } => {
                summarize_debug(protocol.bury(&grant(*n).rk, &Claim::from(&grant(*n)), DEAD).await)
            }
            ProtocolCall::Hold { key, token } => {
                summarize_debug(protocol.hold(&self.keys[*key], self.tokens[*key][*token], UNKNOWN).await)
            }
            ProtocolCall::ResolveDone { key, token, answer } => {
                let answer = vec![*answer].into();
                self.resolve(*key, *token, Verdict::Done { answer, retention: RETENTION }).await
            }
            ProtocolCall::ResolveNotDone { key, token } => {
                self.resolve(*key, *token, Verdict::NotDone { lifetime: RELEASED }).await
            }
            ProtocolCall::Reopen { key, token } => {
                summarize_debug(protocol.reopen(&self.keys[*key], self.tokens[*key][*token], RELEASED).await)
            }
        }
    }

    async fn resolve(&self, key: usize, token: usize, verdict: Verdict) -> ReplySummary {
        let protocol = Protocol::over(&*self.store);
        summarize_debug(protocol.resolve(&self.keys[key], self.tokens[key][token], &verdict).await)
    }

    fn summarize_begin(&mut self, reply: Result<Begun>) -> ReplySummary {
        let text = |text: String| ReplySummary { text, durations: Vec::new() };
        match reply.expect("the begin failed") {
            Begun::Granted(grant) => {
                self.grants.push(grant);
                text(format!("granted {}", self.describe_grant(&grant)))
            }
            Begun::Mine(grant) => text(format!("mine {}", self.describe_grant(&grant))),
            Begun::Busy(left) => ReplySummary { text: "busy".into(), durations: vec![left] },
            Begun::Replay(completion) => text(format!("replay {:?}", completion.answer)),
            other @ (Begun::Mismatch | Begun::Dead) => text(format!("{other:?}")),
            Begun::Indeterminate(_) => text("indeterminate".into()),
        }
    }

    fn summarize_completion(&mut self, key: usize, reply: Result<Completed>) -> ReplySummary {
        match reply.expect("the completion failed") {
            Completed::Lost(record) => {
                let summary = self.summarize(key, &record);
                ReplySummary { text: format!("lost to {}", summary.text), ..summary }
            }
            other @ (Completed::Done | Completed::Recreated | Completed::Already | Completed::Gone) => {
                summarize_debug(Ok(other))
            }
        }
    }

    /// Summarizes a record without its expiry, which depends on the writer's clock.
    fn summarize(&mut self, key: usize, record: &Record) -> ReplySummary {
        let (token, fingerprint) = (self.token_name(key, record.token), record.fingerprint);
        let text = match &record.state {
            State::Completed(completion) => format!("completed {token} {fingerprint:?} {:?}", completion.answer),
            state @ State::Open(..) => {
                format!("{token} {fingerprint:?} {state:?}")
            }
        };
        ReplySummary { text, durations: Vec::new() }
    }

    fn describe_grant(&mut self, grant: &Grant) -> String {
        let Grant { rk, owner, token, attempt, takeover, fingerprint } = grant;
        format!("{rk:?} {owner:?} {} {attempt} {takeover} {fingerprint:?}", self.token_name(self.index_of(rk), *token))
    }

    /// Names a token by the order of its appearance: the same name in both stores if they behave the same.
    fn token_name(&mut self, key: usize, token: Token) -> String {
        let tokens = &mut self.tokens[key];
        let position = tokens.iter().position(|named| *named == token);
        let number = position.unwrap_or_else(|| {
            tokens.push(token);
            tokens.len() - 1
        });
        format!("token {number}")
    }

    fn begin(&self, call: &ProtocolCall) -> Begin {
        let ProtocolCall::Begin { key, owner, payload, on_lapse } = call else { panic!("{call:?} is not a begin") };
        let call = Call::new(self.keys[*key]).fingerprint(fingerprint(*payload));
        Begin { call, owner: *owner, lease: LEASE, unknown_retention: UNKNOWN, on_lapse: *on_lapse }
    }
}

fn completion(grant: &Grant, answer: u8, is_old: bool) -> Complete {
    Complete {
        claim: Claim::from(grant),
        fingerprint: grant.fingerprint,
        answer: vec![answer].into(),
        retention: RETENTION,
        ended: Timestamp(0),
        age: if is_old { RETENTION.into() } else { Duration::ZERO },
    }
}

fn fingerprint(payload: u8) -> Fingerprint {
    Identity::plain().fingerprint(Rule(1), &[&[payload]])
}

/// Summarizes a reply that has neither tokens nor durations.
fn summarize_debug<T: Debug>(reply: Result<T>) -> ReplySummary {
    ReplySummary { text: format!("{:?}", reply.expect("the call failed")), durations: Vec::new() }
}
