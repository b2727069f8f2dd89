//! The steps, and how a trace prints them.

use std::fmt;

/// One step. Rows, keys and relays are numbered from 0; a row has the number of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventAction {
    Begin(usize),
    Draw(usize),
    Commit(usize),
    RollBack(usize),

    Claim(usize),
    Renew(usize),
    Lapse,
    NoticeLoss(usize),
    GiveBack(usize),
    Crash(usize),

    ReadDrawn(usize),
    ReadStamps(usize),
    Read(usize),
    TakeRead(usize),
    GoBack(usize),

    Start(usize, usize),
    Publish(usize, usize),
    Refuse(usize, usize),
    LosePublication(usize, usize),
    LoseConfirmation(usize, usize),
    DelayPublication(usize, usize),
    ArriveLate(usize),
    LoseLate(usize),

    StartMark(usize),
    Mark(usize),
    LoseMark(usize),
    LoseMarkReply(usize),
    MarkLate,
    Park(usize, usize),
    LoseParkReply(usize, usize),
    SetAside(usize),

    BeginResume(usize),
    Reopen(usize),
    EndResume(usize),
    Drop(usize),
    Republish,
    ReopenPublished,
    Sweep(usize),

    ForgetIds,
    Consume,
    LoseAll,
    Keep,
}

impl fmt::Display for EventAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Begin(row) => write!(f, "transaction {row} begins"),
            Self::Draw(row) => write!(f, "transaction {row} draws the id of its row"),
            Self::Commit(row) => write!(f, "transaction {row} commits"),
            Self::RollBack(row) => write!(f, "transaction {row} is rolled back"),
            Self::Claim(relay) => write!(f, "relay {relay} claims the bucket"),
            Self::Renew(relay) => write!(f, "relay {relay} renews its lease"),
            Self::Lapse => write!(f, "the lease of the bucket ends"),
            Self::NoticeLoss(relay) => write!(f, "relay {relay} notices that its lease ended"),
            Self::GiveBack(relay) => write!(f, "relay {relay} gives the bucket back"),
            Self::Crash(relay) => write!(f, "relay {relay} dies"),
            Self::ReadDrawn(relay) => write!(f, "relay {relay} reads the first half of the horizon"),
            Self::ReadStamps(relay) => write!(f, "relay {relay} reads the second half of the horizon"),
            Self::Read(relay) => write!(f, "relay {relay} reads rows"),
            Self::TakeRead(relay) => write!(f, "relay {relay} gets the rows"),
            Self::GoBack(relay) => write!(f, "relay {relay} goes back to the floor"),
            Self::Start(relay, row) => write!(f, "relay {relay} sends row {row}"),
            Self::Publish(relay, row) => write!(f, "the broker confirms row {row} to relay {relay}"),
            Self::Refuse(relay, row) => write!(f, "the broker refuses row {row} of relay {relay}"),
            Self::LosePublication(relay, row) => write!(f, "row {row} of relay {relay} is lost"),
            Self::LoseConfirmation(relay, row) => {
                write!(f, "row {row} arrives, but its confirmation to relay {relay} not")
            }
            Self::DelayPublication(relay, row) => write!(f, "row {row} of relay {relay} is late"),
            Self::ArriveLate(row) => write!(f, "a late copy of row {row} arrives"),
            Self::LoseLate(row) => write!(f, "a late copy of row {row} is lost"),
            Self::StartMark(relay) => write!(f, "relay {relay} sends a mark"),
            Self::Mark(relay) => write!(f, "the rows of relay {relay} are marked"),
            Self::LoseMark(relay) => write!(f, "the mark of relay {relay} is lost"),
            Self::LoseMarkReply(relay) => write!(f, "the rows of relay {relay} are marked, but the reply is lost"),
            Self::MarkLate => write!(f, "a late mark arrives"),
            Self::Park(relay, row) => write!(f, "relay {relay} parks the key of row {row}"),
            Self::LoseParkReply(relay, row) => {
                write!(f, "relay {relay} parks the key of row {row}, but the reply is lost")
            }
            Self::SetAside(relay) => write!(f, "relay {relay} sets rows aside"),
            Self::BeginResume(key) => write!(f, "an operator begins to resume key {key}"),
            Self::Reopen(key) => write!(f, "a row of key {key} is opened again"),
            Self::EndResume(key) => write!(f, "key {key} is no longer parked"),
            Self::Drop(key) => write!(f, "an operator drops the refused row of key {key}"),
            Self::Republish => write!(f, "an operator begins to republish"),
            Self::ReopenPublished => write!(f, "a published row is opened again"),
            Self::Sweep(row) => write!(f, "row {row} is removed"),
            Self::ForgetIds => write!(f, "the broker forgets ids"),
            Self::Consume => write!(f, "the consumer reads all events"),
            Self::LoseAll => write!(f, "the broker loses the events"),
            Self::Keep => write!(f, "the broker can no longer lose the events"),
        }
    }
}
