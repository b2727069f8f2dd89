use std::collections::{HashMap, VecDeque};
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::broker::{Job, Verdict};
use crate::chaos;
use crate::error::ErrorKind;
use crate::gate::{Answer, Detail, Failure, Provenance, Reason, Recorded, Refused, RunResult};
use crate::key::OperationId;
use crate::ledger::attempt::{AttemptOutcome, Attempted};
use crate::ledger::rules::{self, ClaimRuling, Counted, Ended, Ending, Next};
use crate::ledger::verdicts::{self, CallEnd};
use crate::ledger::{Call, Fault, FaultKind, LedgerVerdict, Terms, claims};
use crate::telemetry;

/// What a caller gets for one call.
pub type CallResult<A> = Result<RunResult<A>, Refused<A>>;

/// One call of a batch.
#[derive(Clone, Debug)]
pub struct Work {
    /// The call.
    pub call: Call,
    /// A call is not run while an earlier one of the batch with the same ordering key has no end.
    pub ordering_key: Option<Bytes>,
}

/// The call of a message, with the message's ordering key.
impl From<&Job> for Work {
    fn from(job: &Job) -> Self {
        Self { call: job.call, ordering_key: job.message.ordering_key.clone() }
    }
}

/// The calls of a batch, their results so far, and the transactions that are still to be run.
///
/// It decides which calls run together. An adapter opens the transactions:
///
/// ```text
/// loop:  step() ─┬─ Pause(time)        ─► wait
///                ├─ Transaction(slice) ─► BEGIN, attempt(…), COMMIT or ROLLBACK, ended(slice, …)
///                ├─ Count(failure)     ─► count it in a transaction of its own, counted(…)
///                └─ Done               ─► into_results()
/// ```
#[derive(Debug)]
pub struct Batch<A> {
    terms: Terms,
    work: Vec<Work>,
    results: Vec<Option<CallResult<A>>>,
    /// What the results do not tell: how operations ended that have an answer, and counted failures.
    notes: Vec<CallNote>,
    slices: VecDeque<Slice>,
    /// How long to wait before the next transaction.
    pause: Option<Duration>,
    to_count: Option<FailedCall<A>>,
    /// Transactions whose COMMIT got no reply.
    own: Vec<u64>,
}

/// What the result of a call does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct CallNote {
    /// Whether the answer says that there was no effect.
    is_rejected: bool,
    /// The number of failed attempts, if one was counted now.
    attempts: Option<u32>,
}

/// The calls of one transaction.
#[derive(Debug)]
pub struct Slice {
    members: Vec<usize>,
    /// How often these calls were run in a transaction that the database did not let end.
    tries: u32,
    /// Whether an earlier COMMIT of these calls got no reply, and no claim has told since whether it happened.
    is_commit_open: bool,
}

/// A call whose handler failed.
#[derive(Debug)]
pub struct FailedCall<A> {
    index: usize,
    /// The operation.
    pub operation: OperationId,
    /// The error, for people.
    pub error: String,
    detail: Option<Detail<A>>,
}

/// What to do next for a batch.
#[derive(Debug)]
pub enum Step<A> {
    /// Wait for this time.
    Pause(Duration),
    /// Run these calls in a transaction.
    Transaction(Slice),
    /// Count a failed attempt.
    Count(FailedCall<A>),
    /// Every call has its result.
    Done,
}

impl<A: Answer> Batch<A> {
    /// A batch in which nothing has run.
    pub fn new(terms: Terms, work: Vec<Work>) -> Self {
        let slices = first_slices(&work);
        let results = work.iter().map(|_| None).collect();
        let notes = vec![CallNote::default(); work.len()];
        Self { terms, work, results, notes, slices, pause: None, to_count: None, own: Vec::new() }
    }

    /// What to do next.
    pub fn step(&mut self) -> Step<A> {
        if let Some(failed) = self.to_count.take() {
            if !chaos::on("attempts_forgotten") {
                return Step::Count(failed);
            }
            self.counted(failed, Some(1));
        }
        if let Some(pause) = self.pause.take() {
            return Step::Pause(pause);
        }
        while let Some(mut slice) = self.slices.pop_front() {
            slice.members.retain(|&index| self.results[index].is_none());
            for &index in &slice.members {
                if self.is_held(index) {
                    self.results[index] = Some(Err(BUSY.into()));
                }
            }
            slice.members.retain(|&index| self.results[index].is_none());
            if !slice.members.is_empty() {
                return Step::Transaction(slice);
            }
        }
        Step::Done
    }

    /// The results, in the order of the calls. Call it after [`Step::Done`].
    pub fn into_results(self) -> Vec<CallResult<A>> {
        let missing = || Err(Refused::from(BUSY));
        self.results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// What the results mean for the messages behind the calls. Call it after [`Step::Done`].
    pub fn into_verdicts(self) -> Vec<Verdict> {
        let ends = self.results.into_iter().zip(self.notes);
        let verdict_of = |(result, note): (Option<CallResult<A>>, CallNote)| {
            let ended = if note.is_rejected { LedgerVerdict::Rejected } else { LedgerVerdict::Applied };
            let end = match result {
                Some(Ok(result)) => CallEnd::Answered(result.provenance, ended),
                Some(Err(refused)) => CallEnd::Refused(refused.reason),
                None => CallEnd::Refused(BUSY),
            };
            verdicts::verdict(end, note.attempts)
        };
        ends.map(verdict_of).collect()
    }

    /// Notes how the transaction of a slice ended. `commit` is the result of COMMIT, if it was sent. `random` spreads
    /// the pauses of transactions that disturbed each other.
    pub fn ended(&mut self, slice: Slice, attempted: Attempted<A>, commit: Result<(), Fault>, random: u32) {
        let Attempted { claims, fresh, transaction, outcome } = attempted;
        for (index, claim) in claims {
            self.notes[index].is_rejected =
                matches!(claim, ClaimRuling::Replay { verdict: LedgerVerdict::Rejected, .. });
            self.results[index] = decided(claim).inspect(telemetry::ledger_caught);
        }
        let (ending, found) = match (outcome, commit) {
            (AttemptOutcome::NothingFresh, _) => return,
            (AttemptOutcome::Held, _) => {
                self.slices.push_front(slice);
                return;
            }
            (AttemptOutcome::Ready(answers, verdict), Ok(())) => {
                for (index, answer) in answers {
                    self.notes[index].is_rejected = verdict == LedgerVerdict::Rejected;
                    self.results[index] = Some(Ok(answered(answer, Provenance::Fresh)));
                }
                (Ending::Committed, None)
            }
            (AttemptOutcome::Ready(..), Err(fault)) | (AttemptOutcome::Fault(fault), _) => {
                self.own.extend(transaction);
                (Ending::Fault(fault.kind), Some(Detail::Error(fault.source)))
            }
            (AttemptOutcome::Failed(failed, kind), _) => {
                (kind.map_or(Ending::HandlerFailed(failed.place), Ending::Fault), told(failed.failure))
            }
        };
        // No handler ran, so the failure is not the fault of an operation.
        let ending = match ending {
            Ending::Fault(FaultKind::Failed) if fresh.is_empty() => Ending::ClaimFailed,
            Ending::Fault(_) | Ending::ClaimFailed | Ending::HandlerFailed(_) | Ending::Committed => ending,
        };
        // A transaction that failed before its claims has to run all of its calls again.
        let left = match fresh.is_empty() {
            true => slice,
            false => Slice { members: fresh, is_commit_open: false, ..slice },
        };
        let ended = Ended {
            ending,
            operations: left.members.len(),
            tries_left: self.terms.max_tries.saturating_sub(left.tries + 1),
            is_commit_open: left.is_commit_open,
            is_counting: self.terms.max_attempts.is_some(),
        };
        let next = rules::next(&ended);
        if next == Next::Again {
            self.pause = Some(rules::pause(left.tries, random));
        }
        let is_commit_open = left.is_commit_open || ending == Ending::Fault(FaultKind::CommitUnknown);
        self.follow(next, Slice { is_commit_open, ..left }, found);
    }

    fn follow(&mut self, next: Next, slice: Slice, mut detail: Option<Detail<A>>) {
        let left = &slice.members;
        match next {
            Next::Answer => {}
            Next::Again => self.slices.push_front(Slice { tries: slice.tries + 1, ..slice }),
            Next::Halves => {
                if chaos::on("innocent_counted") {
                    let (index, error) = (left[0], String::new());
                    self.to_count = Some(FailedCall { index, operation: self.operation(index), error, detail: None });
                }
                self.split(left, &[left.len() / 2]);
            }
            Next::Around(place) => self.split(left, &[place, place + 1]),
            Next::Count => {
                let index = left[0];
                let error = detail.as_ref().map(shown).unwrap_or_default();
                let operation = self.operation(index);
                self.to_count = Some(FailedCall { index, operation, error, detail });
            }
            Next::NotApplied => self.refuse(left, Reason::NotApplied { unrecorded: false }, &mut detail),
            Next::Unavailable => self.refuse(left, Reason::Store(ErrorKind::NotApplied), &mut detail),
            Next::Unusable => self.refuse(left, Reason::Store(ErrorKind::Unusable), &mut detail),
            Next::Unknown => self.refuse(left, Reason::Unknown { unrecorded: false }, &mut detail),
        }
    }

    /// Notes the number of failures of a call after this one was counted. None if they could not be counted.
    pub fn counted(&mut self, failed: FailedCall<A>, attempts: Option<u32>) {
        let is_dead = match (attempts, self.terms.max_attempts) {
            (Some(attempts), Some(max)) => rules::counted(attempts, max) == Counted::Dead,
            (None, _) | (_, None) => false,
        };
        self.notes[failed.index].attempts = attempts;
        let reason = if is_dead { Reason::Dead } else { Reason::NotApplied { unrecorded: false } };
        self.results[failed.index] = Some(Err(Refused { reason, detail: failed.detail }));
    }

    /// Gives every operation this reason, and the first one the detail.
    fn refuse(&mut self, members: &[usize], reason: Reason, detail: &mut Option<Detail<A>>) {
        for &index in members {
            self.results[index] = Some(Err(Refused { reason, detail: detail.take() }));
        }
    }

    /// Queues the parts between the cuts, before everything else.
    fn split(&mut self, members: &[usize], cuts: &[usize]) {
        let ends = cuts.iter().copied().chain([members.len()]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let parts: Vec<&[usize]> = starts.zip(ends).map(|(start, end)| &members[start..end]).collect();
        for part in parts.into_iter().rev().filter(|part| !part.is_empty()) {
            self.slices.push_front(Slice::new(part.to_vec()));
        }
    }

    /// Whether an earlier call with the same ordering key has ended without an end for its operation.
    fn is_held(&self, index: usize) -> bool {
        let Some(key) = &self.work[index].ordering_key else {
            return false;
        };
        let earlier = self.work[..index].iter().zip(&self.results);
        let mut same = earlier.filter(|(work, _)| work.ordering_key.as_ref() == Some(key));
        same.any(|(_, result)| result.as_ref().is_some_and(|result| holds_its_key(result)))
    }

    /// Whether one of the fresh calls must wait for a call that these claims leave undecided, or whose answer cannot be
    /// read.
    pub(super) fn holds_any(&self, claims: &[(usize, ClaimRuling)], fresh: &[usize]) -> bool {
        let key = |index: usize| self.work[index].ordering_key.as_ref();
        let last_fresh: HashMap<_, _> = fresh.iter().filter_map(|&index| Some((key(index)?, index))).collect();
        let is_before_fresh =
            |index: usize| key(index).and_then(|key| last_fresh.get(key)).is_some_and(|&last| last > index);
        let holds = |claim: &ClaimRuling| decided::<A>(claim.clone()).is_some_and(|result| holds_its_key(&result));
        claims.iter().any(|(index, claim)| is_before_fresh(*index) && holds(claim))
    }

    pub(super) fn namespace(&self) -> &Arc<str> {
        &self.terms.namespace
    }

    pub(super) fn calls(&self, slice: &Slice) -> Vec<Call> {
        slice.members.iter().map(|&index| self.work[index].call).collect()
    }

    pub(super) fn operation(&self, index: usize) -> OperationId {
        self.work[index].call.operation()
    }

    pub(super) fn own(&self) -> &[u64] {
        &self.own
    }
}

impl Slice {
    fn new(members: Vec<usize>) -> Self {
        Self { members, tries: 0, is_commit_open: false }
    }

    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }
}

/// A call is in the first slice after the earlier copies of its operation, because a transaction can claim an operation
/// only once, and not before the earlier calls of its ordering key.
fn first_slices(work: &[Work]) -> VecDeque<Slice> {
    let mut after_copies: HashMap<OperationId, usize> = HashMap::new();
    let mut of_keys: HashMap<&Bytes, usize> = HashMap::new();
    let mut slices: VecDeque<Slice> = VecDeque::new();
    for (index, Work { call, ordering_key }) in work.iter().enumerate() {
        let after_copy = after_copies.entry(call.operation()).or_default();
        let of_key = ordering_key.as_ref().map(|key| of_keys.entry(key).or_default());
        let place = of_key.as_deref().copied().unwrap_or_default().max(*after_copy);
        if slices.len() == place {
            slices.push_back(Slice::new(Vec::new()));
        }
        slices[place].members.push(index);
        *after_copy = place + 1;
        of_key.into_iter().for_each(|of_key| *of_key = place);
    }
    slices
}

/// How long a caller waits before it tries a busy operation again.
const BUSY: Reason = Reason::Busy { retry_after: Duration::from_secs(1) };

/// The result of a claim that needs no handler.
fn decided<A: Answer>(claim: ClaimRuling) -> Option<CallResult<A>> {
    let refused = |reason: Reason| Some(Err(Refused::from(reason)));
    match claim {
        ClaimRuling::Fresh => None,
        ClaimRuling::Replay { answer, is_own, .. } => {
            let provenance = if is_own { Provenance::Fresh } else { Provenance::Replayed };
            Some(claims::decode(answer).map(|answer| answered(answer, provenance)).map_err(Refused::store))
        }
        ClaimRuling::Mismatch => refused(Reason::Mismatch),
        ClaimRuling::Busy | ClaimRuling::Vanished => refused(BUSY),
        ClaimRuling::Dead => refused(Reason::Dead),
        ClaimRuling::ClaimedTwice => Some(Err(Refused::store(claims::claimed_twice()))),
    }
}

fn answered<A>(answer: A, provenance: Provenance) -> RunResult<A> {
    RunResult { answer, provenance, recorded: Recorded::Yes, expiry: None }
}

/// Whether later calls with the same ordering key wait, because the operation has not come to its end.
fn holds_its_key<A>(result: &CallResult<A>) -> bool {
    match result {
        Ok(_) => false,
        Err(refused) => match refused.reason {
            Reason::Mismatch | Reason::Dead => false,
            Reason::Busy { .. } | Reason::NotApplied { .. } | Reason::Unknown { .. } | Reason::Store(_) => true,
            Reason::Indeterminate { .. } | Reason::Overloaded | Reason::Unrecorded => true,
        },
    }
}

/// What a failed handler told its caller.
fn told<A>(failure: Failure<A>) -> Option<Detail<A>> {
    match failure {
        Failure::Final(answer) => Some(Detail::Answer(answer)),
        Failure::NotApplied(detail) | Failure::Denied(detail) => Some(detail),
        Failure::GivenUp(detail) | Failure::Unknown(detail) => Some(detail),
    }
}

/// What operators see of a failure: the message of the error and those of its causes, up to 500 characters.
fn shown<A>(detail: &Detail<A>) -> String {
    match detail {
        Detail::Error(error) => {
            let error: &(dyn StdError + 'static) = &**error;
            let causes = std::iter::successors(Some(error), |error| (*error).source());
            let messages: Vec<String> = causes.map(ToString::to_string).collect();
            // PostgreSQL keeps no text with a NUL.
            messages.join(": ").replace('\0', "").chars().take(500).collect()
        }
        Detail::Answer(_) => "the handler returned an answer that says: not applied".into(),
    }
}
