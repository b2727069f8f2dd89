//! Lets the message of a dead letter run again where a record of layer 1 forbids it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::broker::DeadLetter;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Call;
use crate::machine::{Begin, Begun, Claim, Complete, Completed, Grant, Lapse, Observed, Resolved, Settled, Verdict};
use crate::record::{Millis, Owner, Phase, Seconds, State};
use crate::settings::{OnLapse, Policy};
use crate::store::{Protocol, Store};
use crate::worker::MessageIdentity;
use crate::worker::rules::{self, LetterRecord, RedriveAction};

/// What may happen to the message of a marked letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReopenedLetter {
    /// It may run.
    Open,
    /// It was processed, and does not run again.
    Processed,
    /// Whether it was processed is unknown. It runs only with the word of an operator.
    Unknown,
}

/// Opens what forbids a message to run again, before its dead letter is redriven.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot reopen operations",
    label = "does not implement `Reopen`",
    note = "pass a `RecordReopener`, or implement `Reopen`"
)]
#[async_trait]
pub trait Reopen: fmt::Debug + Send + Sync + 'static {
    /// Lets the message of this letter run again, as far as that is safe. The reasons
    /// [`DeadReason::NotDone`](crate::broker::DeadReason::NotDone) and
    /// [`DeadReason::Done`](crate::broker::DeadReason::Done) are the word of an operator.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: it may be repeated. The letter waits until then.
    ///
    /// # Cancel safety
    /// If dropped, the message may be open or not.
    async fn reopen(&self, letter: &DeadLetter) -> Result<ReopenedLetter>;
}

/// Opens the records of layer 1 of a worker without a ledger. The table `redrive` of [`rules`] says which.
///
/// A record that is dead, because too many attempts applied nothing, is opened by every redrive. A message whose
/// outcome is unknown runs only by the word of an operator, also if its record has expired. A recorded answer stays,
/// and so does the record of a message with another payload.
pub struct RecordReopener {
    store: Arc<dyn Store>,
    identity: MessageIdentity,
    /// What the record of a message keeps that was processed.
    processed: Bytes,
    times: Times,
    /// Whether an expired lease lets a message run again.
    repeats: bool,
}

/// How long what this writes is valid.
struct Times {
    lease: Millis,
    answer: Seconds,
    /// How long an open record waits for the next attempt.
    released: Seconds,
    unknown: Seconds,
}

impl RecordReopener {
    /// Opens the records in this store, with the identity and the policy of the worker. `processed` is what a record
    /// keeps of a message that was processed.
    pub fn new(store: Arc<dyn Store>, identity: MessageIdentity, policy: &Policy, processed: Bytes) -> Self {
        let seconds = |time: Duration| Seconds(u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1));
        let times = Times {
            lease: Millis(u32::try_from(policy.lease.as_millis()).unwrap_or(u32::MAX)),
            answer: seconds(policy.retention),
            released: seconds(policy.released_retention),
            unknown: seconds(policy.unknown_retention),
        };
        Self { store, identity, processed, times, repeats: matches!(policy.on_lapse, OnLapse::Retry(_)) }
    }

    /// The call of a message with a usable key, and its record.
    async fn read_record(&self, letter: &DeadLetter) -> Result<Option<(Call, Observed)>> {
        let Ok(identified) = self.identity.identify(&letter.message) else { return Ok(None) };
        let call = Call::new(identified.record_key).fingerprint(identified.call.newest_fingerprint());
        Ok(Some((call, self.store.read(&identified.record_key).await?)))
    }

    fn judge(&self, call: &Call, seen: &Observed) -> LetterRecord {
        let Some(record) = seen.live() else { return LetterRecord::Absent };
        if !call.accepts(record.fingerprint) {
            return LetterRecord::Other;
        }
        match &record.state {
            State::Completed(completion) if completion.holds(&self.processed) => LetterRecord::Processed,
            State::Completed(_) => LetterRecord::Answered,
            State::Open(Phase::InProgress, _) if seen.is_running() => LetterRecord::Running,
            State::Open(Phase::InProgress, _) => LetterRecord::Lapsed,
            State::Open(Phase::Indeterminate, _) => LetterRecord::Indeterminate,
            State::Open(Phase::Released, _) => LetterRecord::Released,
            State::Open(Phase::Dead, _) => LetterRecord::Dead,
        }
    }

    async fn reopen_dead(&self, call: &Call, seen: &Observed) -> Result<Resolved> {
        let Some(record) = seen.live() else { return Ok(Resolved::Stale) };
        Protocol::over(&*self.store).reopen(&call.record_key(), record.token, self.times.released).await
    }

    /// Resolves the record. One whose lease has expired is held first.
    async fn resolve(&self, call: &Call, seen: &Observed, verdict: &Verdict) -> Result<Resolved> {
        let Some(record) = seen.live() else { return Ok(Resolved::Stale) };
        let (protocol, rk) = (Protocol::over(&*self.store), call.record_key());
        if record.state.phase() == Some(Phase::InProgress)
            && protocol.hold(&rk, record.token, self.times.unknown).await? == Resolved::Stale
        {
            return Ok(Resolved::Stale);
        }
        protocol.resolve(&rk, record.token, verdict).await
    }

    /// Records that no attempt had an effect. The word of the operator is used up by now: if the worker stops before
    /// the next attempt begins, this record lets the message run.
    async fn release(&self, letter: &DeadLetter, call: &Call, seen: &Observed) -> Result<Resolved> {
        let lifetime = self.times.released;
        if seen.live().is_some() {
            return self.resolve(call, seen, &Verdict::NotDone { lifetime }).await;
        }
        let Some(grant) = self.begin(letter, call).await? else { return Ok(Resolved::Stale) };
        let released = Protocol::over(&*self.store).release(&grant.rk, &Claim::from(&grant), lifetime).await?;
        Ok(match released {
            Settled::Yes => Resolved::Yes,
            Settled::Lost => Resolved::Stale,
        })
    }

    /// Begins an attempt that runs nothing, to write a record. None if another attempt or an answer is there.
    async fn begin(&self, letter: &DeadLetter, call: &Call) -> Result<Option<Grant>> {
        let begin = Begin {
            call: *call,
            // The same for each repetition.
            owner: Owner(*letter.id.as_bytes()),
            lease: self.times.lease,
            unknown_retention: self.times.unknown,
            on_lapse: Lapse::Hold,
        };
        let begun = Protocol::over(&*self.store).begin(&begin).await?;
        let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else { return Ok(None) };
        Ok(Some(grant))
    }

    /// Records that the message was processed.
    async fn record(&self, letter: &DeadLetter, call: &Call, seen: &Observed) -> Result<Resolved> {
        match self.judge(call, seen) {
            LetterRecord::Lapsed | LetterRecord::Indeterminate => {
                let done = Verdict::Done { answer: self.processed.clone(), retention: self.times.answer };
                return self.resolve(call, seen, &done).await;
            }
            LetterRecord::Dead if self.reopen_dead(call, seen).await? == Resolved::Stale => return Ok(Resolved::Stale),
            LetterRecord::Dead | LetterRecord::Absent | LetterRecord::Released => {}
            LetterRecord::Other | LetterRecord::Running | LetterRecord::Processed | LetterRecord::Answered => {
                return Ok(Resolved::Stale);
            }
        }
        let Some(grant) = self.begin(letter, call).await? else { return Ok(Resolved::Stale) };
        let complete = Complete {
            claim: Claim::from(&grant),
            fingerprint: grant.fingerprint,
            answer: self.processed.clone(),
            retention: self.times.answer,
            ended: seen.now,
            age: Duration::ZERO,
        };
        Ok(match Protocol::over(&*self.store).complete(&grant.rk, &complete).await? {
            Completed::Done | Completed::Recreated | Completed::Already => Resolved::Yes,
            Completed::Gone | Completed::Lost(_) => Resolved::Stale,
        })
    }
}

#[async_trait]
impl Reopen for RecordReopener {
    async fn reopen(&self, letter: &DeadLetter) -> Result<ReopenedLetter> {
        let Some((call, seen)) = self.read_record(letter).await? else {
            // Nothing can be written about a message without a key.
            return Ok(match rules::redrive(letter.reason, LetterRecord::Absent, self.repeats) {
                RedriveAction::Record | RedriveAction::Remove => ReopenedLetter::Processed,
                RedriveAction::BuryAgain => ReopenedLetter::Unknown,
                RedriveAction::Deliver | RedriveAction::Reopen | RedriveAction::Release | RedriveAction::Wait => {
                    ReopenedLetter::Open
                }
            });
        };
        let (resolved, reopened) = match rules::redrive(letter.reason, self.judge(&call, &seen), self.repeats) {
            RedriveAction::Deliver => (Resolved::Yes, ReopenedLetter::Open),
            RedriveAction::Reopen => (self.reopen_dead(&call, &seen).await?, ReopenedLetter::Open),
            RedriveAction::Release => (self.release(letter, &call, &seen).await?, ReopenedLetter::Open),
            RedriveAction::Record => (self.record(letter, &call, &seen).await?, ReopenedLetter::Processed),
            RedriveAction::Remove => (Resolved::Yes, ReopenedLetter::Processed),
            RedriveAction::BuryAgain => (Resolved::Yes, ReopenedLetter::Unknown),
            RedriveAction::Wait => (Resolved::Stale, ReopenedLetter::Open),
        };
        match resolved {
            Resolved::Yes => Ok(reopened),
            Resolved::Stale => Err(Error::new(ErrorKind::NotApplied, "another attempt of the message is running")),
        }
    }
}

impl fmt::Debug for RecordReopener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordReopener").field("identity", &self.identity).finish_non_exhaustive()
    }
}
