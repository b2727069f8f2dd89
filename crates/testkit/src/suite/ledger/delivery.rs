//! The ways in which a call reaches the ledger, and what it gets.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::{Call, CallResult, Claimed, Terms, Work};
use hapax_core::{Error, ErrorKind, Fingerprint, OperationId, Rule};

use super::oracle;
use super::script::Script;
use super::setup::{LedgerContents, LedgerSession, LedgerSetup, Snapshot};

/// How a call reaches the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the runner.
    Run,
    /// By the runner, as a batch of one.
    RunBatch,
    /// In a transaction of the caller's own.
    OwnTransaction,
    /// In a savepoint of such a transaction.
    OwnSavepoint,
}

impl Way {
    pub(super) const ALL: &'static [Self] = &[Self::Run, Self::RunBatch, Self::OwnTransaction, Self::OwnSavepoint];
    pub(super) const RUNNER: &'static [Self] = &[Self::Run, Self::RunBatch];
    pub(super) const OWN: &'static [Self] = &[Self::OwnTransaction, Self::OwnSavepoint];
    pub(super) const BATCH: &'static [Self] = &[Self::RunBatch];

    /// The name in the name of a test.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::RunBatch => "run_batch",
            Self::OwnTransaction => "own_transaction",
            Self::OwnSavepoint => "own_savepoint",
        }
    }
}

/// What a call got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Fresh(String),
    Replayed(String),
    Mismatch,
    Busy,
    Dead,
    NotApplied,
    Unknown,
    Error(ErrorKind),
}

impl Got {
    pub(super) fn fresh(self) -> String {
        let shown = format!("{self:?}");
        let Self::Fresh(answer) = self else { panic!("the call is fresh, but got {shown}") };
        answer
    }

    /// Whether the call did not run because another transaction is in its way.
    pub(super) fn is_turned_away(&self) -> bool {
        matches!(self, Self::Busy | Self::NotApplied)
    }
}

impl From<CallResult<String>> for Got {
    fn from(result: CallResult<String>) -> Self {
        let refused = match result {
            Ok(result) if result.provenance == Provenance::Fresh => return Self::Fresh(result.answer),
            Ok(result) => return Self::Replayed(result.answer),
            Err(refused) => refused,
        };
        match refused.reason {
            Reason::Busy { .. } => Self::Busy,
            Reason::Mismatch => Self::Mismatch,
            Reason::Dead => Self::Dead,
            Reason::NotApplied { .. } => Self::NotApplied,
            Reason::Unknown { .. } => Self::Unknown,
            Reason::Store(kind) => Self::Error(kind),
            reason @ (Reason::Indeterminate { .. } | Reason::Overloaded | Reason::Unrecorded) => {
                panic!("a ledger gives no {reason:?}")
            }
        }
    }
}

impl From<Error> for Got {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        if kind == ErrorKind::NotApplied { Self::NotApplied } else { Self::Error(kind) }
    }
}

/// One case in one way.
pub(super) struct World<'a> {
    pub(super) setup: &'a dyn LedgerSetup,
    pub(super) way: Way,
}

pub(super) const PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [2; 12]);
pub(super) const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [3; 12]);

thread_local! {
    /// The number of the case that runs on this thread.
    static CASE: Cell<u32> = const { Cell::new(0) };
}

/// Gives the case that runs on this thread operations of its own: databases may share the locks of operations.
pub(super) fn number_case() {
    static CASES: AtomicU32 = AtomicU32::new(1);
    CASE.set(CASES.fetch_add(1, Ordering::Relaxed));
}

pub(super) fn operation(n: u8) -> OperationId {
    let mut bytes = [n; 16];
    bytes[..4].copy_from_slice(&CASE.get().to_be_bytes());
    OperationId::from_bytes(bytes)
}

pub(super) fn call(n: u8) -> Call {
    Call::new(operation(n)).fingerprint(PAYLOAD)
}

pub(super) const NAMESPACE: &str = "transfers";

pub(super) fn terms() -> Terms {
    Terms::new(NAMESPACE).expect("the namespace is allowed")
}

impl World<'_> {
    /// Delivers the first call on a session of its own.
    pub(super) async fn deliver(&self, script: &Script) -> Got {
        self.deliver_call(call(1), script).await
    }

    pub(super) async fn deliver_call(&self, call: Call, script: &Script) -> Got {
        let session = self.setup.session(terms()).await;
        deliver(&*session, self.way, call, script).await
    }

    /// Delivers a call until no ended transaction is in its way any more.
    pub(super) async fn deliver_patiently(&self, call: Call) -> Got {
        for _ in 0..1_000 {
            let got = self.deliver_call(call, &Script::good()).await;
            if !got.is_turned_away() {
                return got;
            }
        }
        panic!("a transaction that ended is still in the way");
    }

    pub(super) async fn deliver_under(&self, terms: Terms, call: Call, script: &Script) -> Got {
        let namespace = terms.namespace().to_string();
        let session = self.setup.session(terms).await;
        deliver_in(&*session, (self.way, &namespace), call, script).await
    }

    /// Everything that is committed, after a check that nothing is there by halves.
    pub(super) async fn contents(&self) -> LedgerContents {
        let contents = self.setup.contents().await;
        oracle::assert_whole(&contents);
        contents
    }

    /// Asserts that the first call left nothing, and that a copy runs in every way.
    pub(super) async fn assert_nothing_then_fresh(&self) {
        let contents = self.contents().await;
        let is_empty = contents.effects.is_empty() && contents.rows.is_empty() && contents.events.is_empty();
        assert!(is_empty, "nothing was applied, but the database has {contents:?}");
        // The server tells the client of a refused commit before it has given up the locks.
        self.deliver_patiently(call(1)).await.fresh();
        assert_eq!(self.contents().await.effects.len(), 1);
    }

    /// Asserts that the first call ran once, with this answer, and that no copy runs, whatever its way.
    pub(super) async fn assert_once(&self, answer: &str) {
        for &way in Way::ALL {
            let session = self.setup.session(terms()).await;
            let script = Script::good();
            let got = deliver(&*session, way, call(1), &script).await;
            assert_eq!((got, script.runs()), (Got::Replayed(answer.into()), 0), "a copy by {way:?}");
        }
        let contents = self.contents().await;
        let effects = contents.effects.iter().filter(|(_, effect)| *effect == operation(1).to_string());
        assert_eq!(effects.count(), 1, "one effect");
    }

    /// Asserts that the first call ran once or left nothing, and that it has one effect after a copy.
    pub(super) async fn assert_once_after_a_copy(&self, got: &Got) {
        if let Got::Fresh(answer) = got {
            self.assert_once(answer).await;
        } else {
            self.assert_nothing_then_fresh().await;
        }
    }
}

/// Delivers a call to the ledger of the usual namespace.
pub(super) async fn deliver(session: &dyn LedgerSession, way: Way, call: Call, script: &Script) -> Got {
    deliver_in(session, (way, NAMESPACE), call, script).await
}

async fn deliver_in(session: &dyn LedgerSession, (way, namespace): (Way, &str), call: Call, script: &Script) -> Got {
    match way {
        Way::Run => session.run(call, script).await.into(),
        Way::RunBatch => {
            let ordering_key = Some(Bytes::from_static(b"account-7"));
            session.run_batch(vec![Work { call, ordering_key, is_redelivered: false }], script).await.remove(0).into()
        }
        Way::OwnTransaction | Way::OwnSavepoint => own(session, (way, namespace), call, script).await,
    }
}

async fn own(session: &dyn LedgerSession, (way, namespace): (Way, &str), call: Call, script: &Script) -> Got {
    if session.begin(Snapshot::PerStatement).await.is_err() {
        return Got::NotApplied;
    }
    let savepoint = way == Way::OwnSavepoint;
    if savepoint && session.execute("savepoint outer_one").await.is_err() {
        session.roll_back().await;
        return Got::NotApplied;
    }
    match session.claim(&call).await {
        Ok(Claimed::Fresh(())) => {}
        other => {
            session.roll_back().await;
            return match other {
                Ok(Claimed::Replay(answer)) => Got::Replayed(answer),
                Ok(Claimed::Mismatch) => Got::Mismatch,
                Ok(Claimed::Busy) => Got::Busy,
                Ok(Claimed::Dead) => Got::Dead,
                Ok(Claimed::Fresh(())) => unreachable!("fresh claims are above"),
                Err(error) => error.into(),
            };
        }
    }
    let Ok(answer) = script.handle_own(session, namespace, call.operation()).await else {
        session.roll_back().await;
        return Got::NotApplied;
    };
    if let Err(error) = session.finish(call.operation(), &answer).await {
        session.roll_back().await;
        return error.into();
    }
    if savepoint && session.execute("release savepoint outer_one").await.is_err() {
        session.roll_back().await;
        return Got::NotApplied;
    }
    if session.commit().await.is_err() { Got::NotApplied } else { Got::Fresh(answer) }
}
