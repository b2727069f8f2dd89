use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Begin, Begun, Claim, Complete, Completed, Grant, Observed, Verdict};
use hapax_core::store::Protocol;
use hapax_core::{Call, Fingerprint, Identity, Millis, Record, RecordKey, Result, Rule, Seconds, State, Store, Token};

use super::step::Ask;

const LEASE: Millis = Millis(30_000);
const UNKNOWN: Seconds = Seconds(7 * 24 * 3600);
const RETENTION: Seconds = Seconds(24 * 3600);
const RELEASED: Seconds = Seconds(6 * 3600);
const DEAD: Seconds = Seconds(5 * 24 * 3600);

/// One of the two stores, with the grants and tokens that it has given out.
pub(super) struct Side {
    store: Arc<dyn Store>,
    keys: [RecordKey; 2],
    grants: Vec<Grant>,
    /// Of each key: how those of two keys compare is not for the protocol to say.
    tokens: [Vec<Token>; 2],
}

/// What a store said, in words that do not depend on its tokens and its clock.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) text: String,
    /// What is left, or how long ago.
    pub(super) spans: Vec<Duration>,
}

impl Side {
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

    pub(super) async fn seen(&self, key: usize) -> Observed {
        self.store.read(&self.keys[key]).await.expect("a read is answered")
    }

    /// Which of the keys this is.
    fn number(&self, rk: &RecordKey) -> usize {
        usize::from(*rk == self.keys[1])
    }

    /// Which key is asked about.
    pub(super) fn touched(&self, ask: &Ask) -> usize {
        match ask {
            Ask::Begin { key, .. }
            | Ask::Cancel { key, .. }
            | Ask::Hold { key, .. }
            | Ask::ResolveDone { key, .. }
            | Ask::ResolveNotDone { key, .. }
            | Ask::Reopen { key, .. } => *key,
            Ask::Renew { grant }
            | Ask::Complete { grant, .. }
            | Ask::Release { grant }
            | Ask::Abandon { grant }
            | Ask::Bury { grant } => self.number(&self.grants[*grant].rk),
        }
    }

    /// The record that lives under this key.
    pub(super) async fn shown(&mut self, key: usize) -> (Told, Option<Record>) {
        let seen = self.seen(key).await;
        let Some(record) = seen.live().cloned() else { return (Told::default(), None) };
        let mut told = self.record(key, &record);
        told.spans.extend([seen.lease_left, seen.life_left]);
        (told, Some(record))
    }

    /// Asks, and says what came.
    pub(super) async fn told(&mut self, ask: &Ask) -> Told {
        let store = Arc::clone(&self.store);
        let protocol = Protocol::over(&*store);
        let grant = |number: usize| self.grants[number];
        match ask {
            Ask::Begin { .. } => {
                let reply = protocol.begin(&self.begin(ask)).await;
                self.begun(reply)
            }
            Ask::Renew { grant: n } => plain(protocol.renew(&grant(*n).rk, &Claim::from(&grant(*n))).await),
            Ask::Complete { grant: n, answer, is_old } => {
                let reply = protocol.complete(&grant(*n).rk, &completion(&grant(*n), *answer, *is_old)).await;
                self.completed(self.number(&grant(*n).rk), reply)
            }
            Ask::Release { grant: n } => {
                plain(protocol.release(&grant(*n).rk, &Claim::from(&grant(*n)), RELEASED).await)
            }
            Ask::Cancel { key, owner } => plain(protocol.cancel(&self.keys[*key], *owner, RELEASED).await),
            Ask::Abandon { grant: n } => plain(protocol.abandon(&grant(*n).rk, &Claim::from(&grant(*n))).await),
            Ask::Bury { grant: n } => plain(protocol.bury(&grant(*n).rk, &Claim::from(&grant(*n)), DEAD).await),
            Ask::Hold { key, token } => {
                plain(protocol.hold(&self.keys[*key], self.tokens[*key][*token], UNKNOWN).await)
            }
            Ask::ResolveDone { key, token, answer } => {
                let verdict = Verdict::Done { answer: vec![*answer].into(), retention: RETENTION };
                plain(protocol.resolve(&self.keys[*key], self.tokens[*key][*token], &verdict).await)
            }
            Ask::ResolveNotDone { key, token } => {
                let verdict = Verdict::NotDone { lifetime: RELEASED };
                plain(protocol.resolve(&self.keys[*key], self.tokens[*key][*token], &verdict).await)
            }
            Ask::Reopen { key, token } => {
                plain(protocol.reopen(&self.keys[*key], self.tokens[*key][*token], RELEASED).await)
            }
        }
    }

    fn begun(&mut self, reply: Result<Begun>) -> Told {
        let text = |text: String| Told { text, spans: Vec::new() };
        match reply.expect("a begin is answered") {
            Begun::Granted(grant) => {
                self.grants.push(grant);
                text(format!("granted {}", self.grant(&grant)))
            }
            Begun::Mine(grant) => text(format!("mine {}", self.grant(&grant))),
            Begun::Busy(left) => Told { text: "busy".into(), spans: vec![left] },
            Begun::Replay(completion) => text(format!("replay {:?}", completion.answer)),
            other @ (Begun::Mismatch | Begun::Dead) => text(format!("{other:?}")),
            Begun::Indeterminate(_) => text("indeterminate".into()),
        }
    }

    fn completed(&mut self, key: usize, reply: Result<Completed>) -> Told {
        match reply.expect("a completion is answered") {
            Completed::Lost(record) => {
                let told = self.record(key, &record);
                Told { text: format!("lost to {}", told.text), ..told }
            }
            other @ (Completed::Done | Completed::Recreated | Completed::Already | Completed::Gone) => plain(Ok(other)),
        }
    }

    /// All of a record but its expiry, which is shown by the clock of whoever wrote it.
    fn record(&mut self, key: usize, record: &Record) -> Told {
        let (token, fingerprint) = (self.name(key, record.token), record.fingerprint);
        let text = match &record.state {
            State::Completed(completion) => format!("completed {token} {fingerprint:?} {:?}", completion.answer),
            state @ State::Open(..) => {
                format!("{token} {fingerprint:?} {state:?}")
            }
        };
        Told { text, spans: Vec::new() }
    }

    fn grant(&mut self, grant: &Grant) -> String {
        let Grant { rk, owner, token, attempt, takeover, fingerprint } = grant;
        format!("{rk:?} {owner:?} {} {attempt} {takeover} {fingerprint:?}", self.name(self.number(rk), *token))
    }

    /// A token by when it came up: the same for both stores, if they gave out the same.
    fn name(&mut self, key: usize, token: Token) -> String {
        let tokens = &mut self.tokens[key];
        let known = tokens.iter().position(|known| *known == token);
        let number = known.unwrap_or_else(|| {
            tokens.push(token);
            tokens.len() - 1
        });
        format!("token {number}")
    }

    fn begin(&self, ask: &Ask) -> Begin {
        let Ask::Begin { key, owner, payload, on_lapse } = ask else { panic!("{ask:?} is no begin") };
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
        age: if is_old { RETENTION.into() } else { Duration::ZERO },
    }
}

fn fingerprint(payload: u8) -> Fingerprint {
    Identity::plain().fingerprint(Rule(1), &[&[payload]])
}

/// A reply without tokens and spans.
fn plain<T: Debug>(reply: Result<T>) -> Told {
    Told { text: format!("{:?}", reply.expect("every step is answered")), spans: Vec::new() }
}
