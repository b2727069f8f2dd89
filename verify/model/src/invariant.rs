//! The invariants, and the sentence that each of them prints.

/// A property that must hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// I1: an operation has at most one effect.
    OneEffect,
    /// I2: all callers get the same answer.
    OneAnswer,
    /// I3: an answer comes after the effect.
    AnswerHasEffect,
    /// I4: a recorded answer stays.
    CompletedStays,
    /// I5: no grant after a recorded answer.
    NoGrantAfterCompleted,
    /// I6: an answer that a caller got is kept.
    AnswerIsKept,
    /// T: tokens grow.
    TokensGrow,
    /// R: an answer belongs to the key and the payload.
    AnswerFits,
    /// L: no live attempt is taken over or held.
    OnlyTheLapsed,
    /// S: an effect that may have happened is not released.
    NoReleaseAfterEffect,
    /// A: an abandoned grant stays abandoned.
    AbandonedStaysOver,
    /// B: an attempt that ended with an unknown outcome gets no grant.
    NoGrantAfterTheEnd,
    /// E: a completion is never discarded.
    KnownEffectCounts,
    /// F: a key is not left unknown by attempts that applied nothing.
    NothingHeldForNobody,
    /// V: a verdict is not written on the record of a later attempt.
    VerdictFits,
    /// X: an expired record decides nothing.
    ExpiredIsNothing,
    /// M: an attempt does not wait for itself.
    OwnBeginIsMine,
    /// W: a renewal changes only its own grant.
    RenewsItsOwn,
    /// N: a definite answer stays reachable.
    RestIsReachable,
    /// G: no event of a transaction that did not commit arrives.
    NoGhostEvent,
    /// O: the first arrivals of an ordering key are in order, without a gap.
    EventsInOrder,
    /// D: a repeated event is recognized.
    SameEventId,
    /// U: an event has one effect behind the inbox.
    OneEffectOfEvent,
    /// C: a mark leaves a row that an operator dropped, or that is set aside.
    OnlyOpenRowsAreMarked,
    /// P: the effect of each committed event, or the parking of its key, stays reachable.
    EventsArrive,
}

impl Invariant {
    /// Its short name: the first word of its sentence.
    pub fn letter(self) -> &'static str {
        self.sentence().split(' ').next().unwrap_or_default()
    }

    /// The sentence that a report prints.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::OneEffect => "I1 an operation has at most one effect",
            Self::OneAnswer => "I2 all callers get the same answer",
            Self::AnswerHasEffect => "I3 a caller gets an answer only after the effect",
            Self::CompletedStays => "I4 a recorded answer stays",
            Self::NoGrantAfterCompleted => "I5 no attempt is granted after an answer was recorded",
            Self::AnswerIsKept => "I6 an answer that a caller got is in the store, a ledger or a journal",
            Self::TokensGrow => "T  tokens grow with every grant",
            Self::AnswerFits => "R  an answer belongs to the key and the payload of its caller",
            Self::OnlyTheLapsed => "L  only a lapsed attempt is taken over or held",
            Self::NoReleaseAfterEffect => "S  an attempt that had an effect is neither released nor cancelled",
            Self::AbandonedStaysOver => "A  an abandoned grant stays abandoned",
            Self::NoGrantAfterTheEnd => "B  an attempt that ended with an unknown outcome gets no grant",
            Self::KnownEffectCounts => "E  a completion is never discarded",
            Self::RenewsItsOwn => "W  a renewal changes only its own grant",
            Self::VerdictFits => "V  a verdict is written only on the record that it is about",
            Self::ExpiredIsNothing => "X  an expired record decides nothing",
            Self::OwnBeginIsMine => "M  an attempt never waits for itself",
            Self::NothingHeldForNobody => "F  a key is not left unknown by attempts that applied nothing",
            Self::RestIsReachable => "N  a definite answer stays reachable",
            Self::NoGhostEvent => "G  no event arrives whose transaction did not commit",
            Self::EventsInOrder => "O  the first arrivals of an ordering key are in order, without a gap",
            Self::SameEventId => "D  a repeated event has the id of the first one",
            Self::OneEffectOfEvent => "U  an event has at most one effect behind the inbox",
            Self::OnlyOpenRowsAreMarked => "C  a mark changes no row that is set aside or dropped",
            Self::EventsArrive => "P  each committed event can still have its effect, or its key is parked",
        }
    }
}
