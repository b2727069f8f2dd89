//! The steps of the model, and how a trace prints them.

use std::fmt;

use crate::request::{CancelRound, Operation, Sender};

/// One step of the world. Attempts are numbered from 0, keys likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The attempt's call arrives, and it sends a begin.
    Start(u8),
    /// A request is carried out and its reply arrives.
    Deliver(Sender),
    /// A request is carried out and its reply is lost.
    LoseReply(Sender),
    /// A request is lost.
    LoseRequest(Sender),
    /// A request is late, and its sender stops waiting.
    Delay(Sender),
    /// A request is carried out, its reply arrives, and a copy of it is in transit.
    Duplicate(Sender),
    /// The attempt gets the reply for the other key.
    MixUp(u8),
    /// The late request with this index arrives.
    Arrive(u8),
    /// The attempt's lease is renewed.
    Renew(u8),
    /// A renewal of the attempt is late.
    RenewLate(u8),
    /// The handler has its effect and reports this outcome.
    Act(u8, ReportedOutcome),
    /// The handler reports this outcome without an effect.
    Refrain(u8, ReportedOutcome),
    /// The handler reports an unknown outcome while its effect is in transit.
    Strand(u8),
    /// An effect in transit happens.
    TakeEffect(u8),
    /// The handler opens a transaction and claims its operation in the ledger.
    Claim(u8),
    /// The database does not let the handler claim, until no try is left.
    FailToClaim(u8),
    /// The transaction is committed.
    Commit(u8),
    /// The COMMIT or its reply is lost, and the transaction is in doubt.
    LoseCommit(u8),
    /// The database rolls the transaction back because of another one.
    Conflict(u8),
    /// The transaction in doubt is rolled back.
    RollBack(u8),
    /// The grant arrives so late that the handler is not started.
    TooLate(u8),
    /// The completion is spilled to the journal, and the caller gets the answer.
    Spill(u8),
    /// The store is down, and the handler runs without a record.
    Pass(u8),
    /// An attempt stops waiting for another attempt.
    GiveUp(u8),
    /// An attempt reads the record before it calls the probe.
    LookFirst(u8),
    /// The probe returns what it found.
    Probe(u8),
    /// The attempt's process crashes.
    Crash(u8, CrashRemnant),
    /// A lease expires.
    Lapse(u8),
    /// A record expires.
    Expire(u8),
    /// An expired record is removed.
    Sweep(u8),
    /// The store's clock steps back.
    StepBack(u8),
    /// The store forgets everything.
    Forget,
    /// The replica catches up with the store.
    CatchUp,
    /// The replica replaces the store.
    FailOver,
    /// The operator reads the record.
    Look,
    /// The operator finds the outcome out and resolves the record.
    FindOut,
}

/// The outcome that a handler reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedOutcome {
    /// The effect happened, and there is an answer.
    Applied,
    /// The effect is known not to have happened.
    NotApplied,
    /// The effect is known not to have happened, and the key is closed.
    LastNotApplied,
    /// The effect may have happened.
    Unknown,
}

/// What a crashed process leaves in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashRemnant {
    /// Nothing.
    Nothing,
    /// The request whose reply it waited for.
    Request,
    /// The effect of its handler.
    Effect,
}

const NAMES: [&str; 3] = ["the first", "the second", "the third"];

fn name(number: u8) -> &'static str {
    NAMES[usize::from(number)]
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attempt(number) => f.write_str(name(*number)),
            Self::Journal(number) => write!(f, "{}'s journal", name(*number)),
            Self::Operator => f.write_str("the operator"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => f.write_str("begin"),
            Self::Renew => f.write_str("renew"),
            Self::Complete => f.write_str("complete"),
            Self::Release => f.write_str("release"),
            Self::Abandon => f.write_str("abandon"),
            Self::Bury => f.write_str("bury"),
            Self::Cancel(CancelRound::AtOnce) => f.write_str("cancel"),
            Self::Cancel(CancelRound::Later) => f.write_str("second cancel"),
            Self::Hold { expected } => write!(f, "hold of token {expected}"),
            Self::Resolve { expected, done: Some(_) } => write!(f, "resolve of token {expected} as done"),
            Self::Resolve { expected, done: None } => write!(f, "resolve of token {expected} as not done"),
            Self::Reopen { expected } => write!(f, "reopen of token {expected}"),
        }
    }
}

impl fmt::Display for ReportedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Applied => "applied",
            Self::NotApplied => "not applied",
            Self::LastNotApplied => "not applied, and the key is closed",
            Self::Unknown => "unknown",
        })
    }
}

/// Does not print the request: the trace takes it from the state.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Start(number) => write!(f, "{} starts", name(number)),
            Self::Deliver(sender) => write!(f, "{sender}:"),
            Self::LoseReply(sender) => write!(f, "{sender}, reply lost:"),
            Self::LoseRequest(sender) => write!(f, "{sender}, request lost:"),
            Self::Delay(sender) => write!(f, "{sender}, request late:"),
            Self::Duplicate(sender) => write!(f, "{sender}, sent twice:"),
            Self::MixUp(number) => write!(f, "{} gets the reply for the other key:", name(number)),
            Self::Arrive(_) => f.write_str("late request arrives:"),
            Self::Renew(number) => write!(f, "{}: renew", name(number)),
            Self::RenewLate(number) => write!(f, "{}, request late: renew", name(number)),
            Self::Act(number, word) => write!(f, "{} has its effect and reports: {word}", name(number)),
            Self::Refrain(number, word) => write!(f, "{} has no effect and reports: {word}", name(number)),
            Self::Strand(number) => write!(f, "{} reports: unknown; its effect is in transit", name(number)),
            Self::TakeEffect(number) => write!(f, "the effect of {} that was in transit happens", name(number)),
            Self::Claim(number) => write!(f, "{} claims its operation in the ledger", name(number)),
            Self::FailToClaim(number) => write!(f, "the ledger is not available to {}", name(number)),
            Self::Commit(number) => write!(f, "{} commits", name(number)),
            Self::LoseCommit(number) => write!(f, "{} commits, reply lost", name(number)),
            Self::Conflict(number) => write!(f, "the database rolls {} back", name(number)),
            Self::RollBack(number) => write!(f, "the transaction of {} that was in doubt is rolled back", name(number)),
            Self::TooLate(number) => write!(f, "{} is granted too late to start", name(number)),
            Self::Spill(number) => write!(f, "{} spills its completion and answers its caller", name(number)),
            Self::Pass(number) => write!(f, "{} runs without a record", name(number)),
            Self::GiveUp(number) => write!(f, "{} stops waiting", name(number)),
            Self::LookFirst(number) => write!(f, "{} reads the record", name(number)),
            Self::Probe(number) => write!(f, "{} calls the probe", name(number)),
            Self::Crash(number, CrashRemnant::Nothing) => write!(f, "{} crashes", name(number)),
            Self::Crash(number, CrashRemnant::Request) => write!(f, "{} crashes, its request in transit", name(number)),
            Self::Crash(number, CrashRemnant::Effect) => write!(f, "{} crashes, its effect in transit", name(number)),
            Self::Lapse(_) => f.write_str("the lease expires"),
            Self::Expire(_) => f.write_str("the record expires"),
            Self::Sweep(_) => f.write_str("the expired record is removed"),
            Self::StepBack(_) => f.write_str("the store's clock steps back"),
            Self::Forget => f.write_str("the store forgets everything"),
            Self::CatchUp => f.write_str("the replica catches up"),
            Self::FailOver => f.write_str("the replica replaces the store"),
            Self::Look => f.write_str("the operator reads the record"),
            Self::FindOut => f.write_str("the operator finds the outcome out"),
        }
    }
}
