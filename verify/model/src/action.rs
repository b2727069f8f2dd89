//! Everything that can happen next.

use std::fmt;

use crate::ask::{Op, Round, Who};

/// One step of the world. Attempts are numbered from 0, keys likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The attempt's call arrives, and it asks to begin.
    Start(u8),
    /// A request is carried out and its reply arrives.
    Deliver(Who),
    /// A request is carried out and its reply is lost.
    LoseReply(Who),
    /// A request is lost.
    LoseRequest(Who),
    /// A request is late: whoever sent it stops waiting.
    Delay(Who),
    /// A request is carried out, its reply arrives, and a copy of it is still under way.
    Duplicate(Who),
    /// The attempt gets the reply that was meant for the other key.
    MixUp(u8),
    /// The late request in this place arrives.
    Arrive(u8),
    /// The attempt's lease is renewed.
    Renew(u8),
    /// The same, but late.
    RenewLate(u8),
    /// The handler has its effect, and says so, or fails after it.
    Act(u8, Word),
    /// The handler ends without an effect.
    Refrain(u8, Word),
    /// The handler fails while its effect is under way.
    Strand(u8),
    /// An effect that was under way happens.
    TakeEffect(u8),
    /// The grant came so late that the handler is not started.
    TooLate(u8),
    /// The completion goes to the journal, and the answer is given.
    Spill(u8),
    /// The store is down: the handler runs without a record.
    Pass(u8),
    /// An attempt that waited stops waiting.
    GiveUp(u8),
    /// An attempt looks at the record before it asks the probe.
    LookFirst(u8),
    /// The probe answers.
    Probe(u8),
    /// The attempt's process dies.
    Crash(u8, Leaving),
    /// A lease runs out.
    Lapse(u8),
    /// A record's life ends.
    Expire(u8),
    /// A record that expired is removed.
    Sweep(u8),
    /// The store's clock steps back.
    StepBack(u8),
    /// The store loses everything.
    Forget,
    /// The replica catches up with the store.
    CatchUp,
    /// The replica takes the store's place.
    FailOver,
    /// The operator looks at the record.
    Look,
    /// The operator finds out, and tells.
    FindOut,
}

/// What a handler says at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It happened, and this is its answer.
    Applied,
    /// Known: it did not happen.
    NotApplied,
    /// Not applied, and not to be tried again.
    LastNotApplied,
    /// It may have happened.
    Unknown,
}

/// What a process that dies leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing that can still arrive.
    Nothing,
    /// The request that it waited for.
    Request,
    /// The handler's effect.
    Effect,
}

const NAMES: [&str; 3] = ["the first", "the second", "the third"];

fn name(number: u8) -> &'static str {
    NAMES[usize::from(number)]
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attempt(number) => f.write_str(name(*number)),
            Self::Journal(number) => write!(f, "{}'s journal", name(*number)),
            Self::Operator => f.write_str("the operator"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => f.write_str("begin"),
            Self::Renew => f.write_str("renew"),
            Self::Complete => f.write_str("complete"),
            Self::Release => f.write_str("release"),
            Self::Abandon => f.write_str("abandon"),
            Self::Bury => f.write_str("bury"),
            Self::Cancel(Round::AtOnce) => f.write_str("cancel"),
            Self::Cancel(Round::Later) => f.write_str("second cancel"),
            Self::Hold { expected } => write!(f, "hold of token {expected}"),
            Self::Resolve { expected, done: Some(_) } => write!(f, "resolve of token {expected} as done"),
            Self::Resolve { expected, done: None } => write!(f, "resolve of token {expected} as not done"),
            Self::Reopen { expected } => write!(f, "reopen of token {expected}"),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Applied => "applied",
            Self::NotApplied => "not applied",
            Self::LastNotApplied => "not applied, for the last time",
            Self::Unknown => "unknown",
        })
    }
}

/// Without what is asked: the trace knows that from the state.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Start(number) => write!(f, "{} starts", name(number)),
            Self::Deliver(who) => write!(f, "{who}:"),
            Self::LoseReply(who) => write!(f, "{who}, reply lost:"),
            Self::LoseRequest(who) => write!(f, "{who}, request lost:"),
            Self::Delay(who) => write!(f, "{who}, request late:"),
            Self::Duplicate(who) => write!(f, "{who}, sent twice:"),
            Self::MixUp(number) => write!(f, "{} gets the reply for the other key:", name(number)),
            Self::Arrive(_) => f.write_str("late request arrives:"),
            Self::Renew(number) => write!(f, "{}: renew", name(number)),
            Self::RenewLate(number) => write!(f, "{}, request late: renew", name(number)),
            Self::Act(number, word) => write!(f, "{} has its effect and says: {word}", name(number)),
            Self::Refrain(number, word) => write!(f, "{} has no effect and says: {word}", name(number)),
            Self::Strand(number) => write!(f, "{} says: unknown; its effect is under way", name(number)),
            Self::TakeEffect(number) => write!(f, "the effect of {} that was under way happens", name(number)),
            Self::TooLate(number) => write!(f, "{} is granted too late to start", name(number)),
            Self::Spill(number) => write!(f, "{} spills its completion and answers", name(number)),
            Self::Pass(number) => write!(f, "{} runs without a record", name(number)),
            Self::GiveUp(number) => write!(f, "{} stops waiting", name(number)),
            Self::LookFirst(number) => write!(f, "{} looks at the record", name(number)),
            Self::Probe(number) => write!(f, "{} asks the probe", name(number)),
            Self::Crash(number, Leaving::Nothing) => write!(f, "{} dies", name(number)),
            Self::Crash(number, Leaving::Request) => write!(f, "{} dies, its request under way", name(number)),
            Self::Crash(number, Leaving::Effect) => write!(f, "{} dies, its effect under way", name(number)),
            Self::Lapse(_) => f.write_str("the lease runs out"),
            Self::Expire(_) => f.write_str("the record expires"),
            Self::Sweep(_) => f.write_str("the expired record is removed"),
            Self::StepBack(_) => f.write_str("the store's clock steps back"),
            Self::Forget => f.write_str("the store forgets everything"),
            Self::CatchUp => f.write_str("the replica catches up"),
            Self::FailOver => f.write_str("the replica takes over"),
            Self::Look => f.write_str("the operator looks"),
            Self::FindOut => f.write_str("the operator finds out"),
        }
    }
}
