use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::broker::{DeadCause, Job, Verdict};
use crate::chaos::Mutant;
use crate::error::ErrorKind;
use crate::gate::{Answer, Detail, Provenance, Reason, Refused, RunResult};
use crate::key::OperationId;
use crate::ledger::attempt::{AttemptOutcome, Attempted};
use crate::ledger::results::{BUSY, answered, decided, holds_its_key, shown, told};
use crate::ledger::rules::{self, ClaimRuling, Ended, Ending, Next, Uncounted};
use crate::ledger::slices::{Slice, first_slices};
use crate::ledger::verdicts::{self, CallEnd};
use crate::ledger::{Call, Fault, FaultKind, FoundRow, LedgerVerdict, RecentCopies, Terms};
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
    /// Whether the call has arrived before, so that it is likely to have a row: the row is then looked for before the
    /// claim. It makes no difference for the result.
    pub is_redelivered: bool,
}

/// The call of a message, with the message's ordering key.
impl From<&Job> for Work {
    fn from(job: &Job) -> Self {
        let is_redelivered = job.attempt.is_some_and(|attempt| attempt > 1);
        Self { call: job.call, ordering_key: job.message.ordering_key.clone(), is_redelivered }
    }
}

/// The calls of a batch, their results so far, and the transactions that are still to be run.
///
/// It decides which calls run together. An adapter opens the transactions:
///
/// ```text
/// loop:  step() ─┬─ Pause(time)        ─► wait
///                ├─ Transaction(slice) ─► BEGIN, attempt(…), COMMIT or ROLLBACK, ended(slice, …);
///                │                        if is_copy_likely(slice), perhaps first: read the rows, found(slice, …)
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
    copies: Arc<RecentCopies>,
}

/// What the result of a call does not tell.
#[derive(Clone, Debug, Default)]
struct CallNote {
    /// Whether the answer says that there was no effect.
    is_rejected: bool,
    /// The number of failed attempts, if one was counted now.
    attempts: Option<u32>,
    /// The error of that attempt.
    cause: Option<DeadCause>,
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
        let copies = Arc::default();
        Self { terms, work, results, notes, slices, pause: None, to_count: None, own: Vec::new(), copies }
    }

    /// Counts the copies of this batch with those of the batches before, which have the same counter.
    #[must_use]
    pub fn with_copies(mut self, copies: &Arc<RecentCopies>) -> Self {
        self.copies = Arc::clone(copies);
        self
    }

    /// What to do next.
    pub fn step(&mut self) -> Step<A> {
        if let Some(failed) = self.to_count.take() {
            if !Mutant::AttemptsForgotten.is_on() {
                return Step::Count(failed);
            }
            self.counted(failed, Ok(1));
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
            verdicts::verdict(end, note.attempts).because(note.cause)
        };
        ends.map(verdict_of).collect()
    }

    /// Whether one of these calls probably has a row. Then it takes less time to look for the rows before a transaction
    /// is opened, and to give them to [`found`](Self::found).
    pub fn is_copy_likely(&self, slice: &Slice) -> bool {
        let is_later_try = slice.is_commit_open || slice.had_row;
        let is_redelivered = || slice.members.iter().any(|&index| self.work[index].is_redelivered);
        !slice.is_read && (is_later_try || self.copies.are_likely() || is_redelivered())
    }

    /// Gives the calls their results that have a row, from what a read before the transaction has found for each call
    /// of the slice. The others run in a transaction. `random` is as for [`ended`](Self::ended).
    pub fn found(&mut self, slice: Slice, found: Result<Vec<FoundRow>, Fault>, random: u32) {
        let found = match found {
            Ok(found) => found,
            Err(fault) => return self.ended(slice, Attempted::not_begun(fault), Ok(()), random),
        };
        let mut copies = 0;
        for (&index, found) in slice.members.iter().zip(&found) {
            if let Some(ruling) = rules::read(&self.work[index].call, found, &self.own) {
                copies += 1;
                self.decide(index, ruling);
            }
        }
        self.copies.note(copies, found.len() - copies);
        self.slices.push_front(Slice { is_read: true, ..slice });
    }

    /// Notes the result of a call that runs no handler.
    fn decide(&mut self, index: usize, ruling: ClaimRuling) {
        self.notes[index].is_rejected = matches!(ruling, ClaimRuling::Replay { verdict: LedgerVerdict::Rejected, .. });
        self.results[index] = decided(ruling).inspect(telemetry::ledger_caught);
    }

    /// Notes how the transaction of a slice ended. `commit` is the result of COMMIT, if it was sent. `random` spreads
    /// the pauses of transactions that disturbed each other.
    pub fn ended(&mut self, slice: Slice, attempted: Attempted<A>, commit: Result<(), Fault>, random: u32) {
        let Attempted { claims, fresh, transaction, outcome } = attempted;
        // The read has noted these calls, and those that had a row.
        if !slice.is_read {
            self.copies.note(claims.iter().filter(|(_, claim)| claim.has_row()).count(), fresh.len());
        }
        for (index, claim) in claims {
            self.decide(index, claim);
        }
        let (ending, found) = match (outcome, commit) {
            (AttemptOutcome::NothingFresh, _) => return,
            (AttemptOutcome::Held, _) => return self.slices.push_front(slice),
            (AttemptOutcome::Ready(answers, verdict), Ok(())) => {
                self.answer(answers, verdict);
                (Ending::Committed, None)
            }
            (AttemptOutcome::Ready(..), Err(fault)) | (AttemptOutcome::Fault(fault), _) => {
                self.own.extend(transaction);
                (ending_of(&fault, &fresh), Some(Detail::Error(fault.source)))
            }
            (AttemptOutcome::Failed(failed, kind), _) => {
                (kind.map_or(Ending::HandlerFailed(failed.place), Ending::Fault), told(failed.failure))
            }
        };
        // A transaction that failed before its claims has to run all of its calls again.
        let left = match fresh.is_empty() {
            true => slice,
            false => Slice { members: fresh, is_commit_open: false, ..slice },
        };
        let is_commit_open = left.is_commit_open || ending == Ending::Fault(FaultKind::CommitUnknown);
        let next = rules::next(&self.ended_slice(&left, ending));
        if next == Next::Again {
            self.pause = Some(rules::pause(left.tries, random));
        }
        let had_row = ending == Ending::Fault(FaultKind::RowExists);
        self.follow(next, Slice { is_commit_open, had_row, is_read: false, ..left }, found);
    }

    /// Notes the answers of a transaction that has committed.
    fn answer(&mut self, answers: Vec<(usize, A)>, verdict: LedgerVerdict) {
        for (index, answer) in answers {
            self.notes[index].is_rejected = verdict == LedgerVerdict::Rejected;
            self.results[index] = Some(Ok(answered(answer, Provenance::Fresh)));
        }
    }

    /// What the rules ask about the transaction of these calls.
    fn ended_slice(&self, left: &Slice, ending: Ending) -> Ended {
        Ended {
            ending,
            operations: left.members.len(),
            tries_left: self.terms.max_tries.saturating_sub(left.tries + 1),
            is_commit_open: left.is_commit_open,
            had_row: left.had_row,
            is_counting: self.terms.max_attempts.is_some(),
        }
    }

    fn follow(&mut self, next: Next, slice: Slice, mut detail: Option<Detail<A>>) {
        let left = &slice.members;
        match next {
            Next::Answer => {}
            Next::Again => self.slices.push_front(Slice { tries: slice.tries + 1, ..slice }),
            Next::Halves => {
                if Mutant::InnocentCounted.is_on() {
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

    /// Notes the number of failures of a call after this one was counted, or why it could not be counted.
    pub fn counted(&mut self, failed: FailedCall<A>, attempts: Result<u32, Fault>) {
        let reason = match attempts {
            Ok(attempts) => {
                let note = &mut self.notes[failed.index];
                (note.attempts, note.cause) = (Some(attempts), DeadCause::new(&failed.error));
                match self.terms.is_last_attempt(attempts) {
                    true => Reason::Dead,
                    false => Reason::NotApplied { unrecorded: false },
                }
            }
            Err(fault) => {
                telemetry::attempt_not_counted(failed.operation, &fault);
                match rules::uncounted(fault.kind) {
                    Uncounted::Unusable => Reason::Store(ErrorKind::Unusable),
                    Uncounted::NotApplied => Reason::NotApplied { unrecorded: false },
                }
            }
        };
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

    /// The operations of a slice.
    pub fn operations(&self, slice: &Slice) -> Vec<OperationId> {
        slice.members.iter().map(|&index| self.operation(index)).collect()
    }

    pub(super) fn calls(&self, slice: &Slice) -> Vec<Call> {
        slice.members.iter().map(|&index| self.work[index].call).collect()
    }

    pub(super) fn call(&self, index: usize) -> Call {
        self.work[index].call
    }

    fn operation(&self, index: usize) -> OperationId {
        self.work[index].call.operation()
    }

    pub(super) fn own(&self) -> &[u64] {
        &self.own
    }
}

/// How a transaction ended that had a fault. If no handler ran, the fault is not that of an operation.
fn ending_of(fault: &Fault, fresh: &[usize]) -> Ending {
    let is_before_handler = fault.kind == FaultKind::Failed && fresh.is_empty();
    if is_before_handler { Ending::ClaimFailed } else { Ending::Fault(fault.kind) }
}
