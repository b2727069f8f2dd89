//! Letters that were taken for a redrive: their leases, what lets their messages run again, and their ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Reopen, ReopenedLetter};
use crate::broker::{
    DeadLetter, DeadLetterId, DeadLetterStore, DeadReason, DeliveryId, Lane, MarkedLetter, Settlement,
};
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::record::Timestamp;
use crate::runtime::{Runtime, timeout};
use crate::telemetry;

/// How long a taken letter belongs to this worker. Each round of taking extends it.
const LEASE: Duration = Duration::from_secs(30);

/// How long a message may take to be opened, and how long its letter waits after a failure.
const REOPEN_WITHIN: Duration = Duration::from_secs(5);
const REOPEN_AGAIN: Duration = Duration::from_secs(30);

/// After this many failures the other letters wait for another round: the store may be down.
const MOST_FAILURES: u32 = 3;
const TAKE_AGAIN: Duration = Duration::from_secs(5);

/// How long one round opens messages. Only a round extends the leases of the letters that are open.
const PREPARE_WITHIN: Duration = Duration::from_secs(10);

/// How many marked letters are processed at a time.
const MOST: usize = 100;

/// What the source, its settler and its tasks share.
pub(super) struct Redrive {
    pub(super) letters: Arc<dyn DeadLetterStore>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) source: Arc<str>,
    pub(super) lane: Lane,
    pub(super) reopen: Option<Arc<dyn Reopen>>,
    /// Taken letters without an end, by the number of their delivery.
    pub(super) open: Mutex<BTreeMap<u64, OpenLetter>>,
}

/// A letter that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLetter {
    pub(super) id: DeadLetterId,
    pub(super) marked_at: Timestamp,
    /// Until when it belongs to this worker, on the boot-time clock. It ends in the store no earlier.
    pub(super) leased_until: Duration,
    /// How its delivery was settled, if the store has not confirmed it. Each round settles it again.
    pub(super) owed: Option<Settlement>,
}

/// Letters that were taken together.
#[derive(Default)]
pub(super) struct TakenLetters {
    pub(super) letters: Vec<MarkedLetter>,
    pub(super) leased_until: Duration,
}

impl Redrive {
    /// Extends the leases of the open letters and takes further ones, in a task: a future that is dropped would lose
    /// them for the length of their lease.
    pub(super) fn start_taking(self: &Arc<Self>) -> oneshot::Receiver<Result<TakenLetters>> {
        let (reply, taken) = oneshot::channel();
        let redrive = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            // A failed send means that the source was dropped.
            let _ = reply.send(redrive.extend_and_take().await);
        }));
        taken
    }

    async fn extend_and_take(&self) -> Result<TakenLetters> {
        self.settle_again().await;
        self.extend().await?;
        let limit = MOST.saturating_sub(self.open.lock().len());
        if limit == 0 {
            return Ok(TakenLetters::default());
        }
        let leased_until = self.runtime.boottime_now() + LEASE;
        let mut taken = self.letters.take_marked(&self.source, limit, LEASE).await?.into_iter();
        let (mut ready, mut failures) = (Vec::new(), 0);
        let until = self.runtime.boottime_now() + PREPARE_WITHIN;
        while failures < MOST_FAILURES
            && self.runtime.boottime_now() < until
            && let Some(mut marked) = taken.next()
        {
            match self.prepare(&mut marked).await {
                Ok(true) => ready.push(marked),
                Ok(false) => {}
                Err(error) => {
                    telemetry::reopen_failed(&self.source, &error);
                    failures += 1;
                    // Longer than the letters behind it, which must not wait for it. Without the call, all of them are
                    // free after their lease.
                    let _ = self.letters.postpone(&[marked.letter.id], REOPEN_AGAIN).await;
                }
            }
        }
        let waiting: Vec<DeadLetterId> = taken.map(|marked| marked.letter.id).collect();
        if !waiting.is_empty() {
            let after = if failures < MOST_FAILURES { Duration::ZERO } else { TAKE_AGAIN };
            let _ = self.letters.postpone(&waiting, after).await;
        }
        Ok(TakenLetters { letters: ready, leased_until })
    }

    /// Extends the leases of the open letters. A lease that has ended is not extended: the letter may have been dropped
    /// since, or be with another worker.
    async fn extend(&self) -> Result<()> {
        let asked_at = self.runtime.boottime_now();
        let is_live = |letter: &&OpenLetter| letter.leased_until > asked_at;
        let open: Vec<DeadLetterId> = self.open.lock().values().filter(is_live).map(|letter| letter.id).collect();
        if open.is_empty() || Mutant::LetterIsNotExtended.is_on() {
            return Ok(());
        }
        self.letters.extend(&open, LEASE).await?;
        let extended_at = self.runtime.boottime_now();
        for letter in self.open.lock().values_mut().filter(|letter| open.contains(&letter.id)) {
            if letter.leased_until > extended_at {
                letter.leased_until = asked_at + LEASE;
            }
        }
        Ok(())
    }

    /// Whether an open letter still belongs to this worker. One that does not is not open any more.
    pub(super) fn is_ours(&self, number: u64) -> bool {
        let (mut open, now) = (self.open.lock(), self.runtime.boottime_now());
        let is_live = open.get(&number).is_some_and(|letter| letter.leased_until > now);
        if !is_live && open.remove(&number).is_some() {
            telemetry::redrive_lapsed(&self.source);
        }
        is_live || Mutant::LetterRunsAfterItsLease.is_on()
    }

    /// Lets a message run again. Returns whether its letter can be delivered now.
    async fn prepare(&self, marked: &mut MarkedLetter) -> Result<bool> {
        let reopened = match &self.reopen {
            Some(reopen) => {
                if !self.use_up_word(marked).await? {
                    return Ok(false);
                }
                let late = || Err(Error::new(ErrorKind::Unknown, "the record was not opened in time"));
                timeout(&*self.runtime, REOPEN_WITHIN, reopen.reopen(&marked.letter)).await.unwrap_or_else(late)?
            }
            None if marked.letter.reason == DeadReason::Done => ReopenedLetter::Processed,
            None => ReopenedLetter::Open,
        };
        match reopened {
            ReopenedLetter::Open => return Ok(true),
            ReopenedLetter::Processed => self.letters.finish(&[(marked.letter.id, marked.marked_at)]).await?,
            ReopenedLetter::Unknown => self.bury_again(&marked.letter).await?,
        }
        Ok(false)
    }

    /// Uses up the word "not done" of an operator. It is about the attempts until now, so it is used up before the next
    /// one can begin: if that one does not end either, its outcome is unknown again. Returns whether the letter still
    /// has its mark.
    async fn use_up_word(&self, marked: &mut MarkedLetter) -> Result<bool> {
        if marked.letter.reason != DeadReason::NotDone || Mutant::WordIsNotUsedUp.is_on() {
            return Ok(true);
        }
        let mark = self.letters.use_up_word(marked.letter.id, marked.marked_at).await?;
        marked.marked_at = mark.unwrap_or(marked.marked_at);
        Ok(mark.is_some())
    }

    /// Writes a letter again, without its mark: an operator has to find out what happened to its message.
    async fn bury_again(&self, letter: &DeadLetter) -> Result<()> {
        let reason = if letter.reason == DeadReason::NotDone { DeadReason::OutcomeUnknown } else { letter.reason };
        let again = DeadLetter { reason, at: self.runtime.wall_now(), ..letter.clone() };
        let missing = || Err(Error::new(ErrorKind::Unknown, "the dead letters gave no result for a letter"));
        self.letters.put(vec![again.clone()]).await.pop().unwrap_or_else(missing)?;
        telemetry::redrive_needs_word(&self.source);
        telemetry::buried(&again);
        Ok(())
    }

    /// Settles what the store has not confirmed. The worker itself gives up after a few tries.
    async fn settle_again(&self) {
        let owed: Vec<(u64, Settlement)> = {
            let open = self.open.lock();
            open.iter().filter_map(|(number, letter)| Some((*number, letter.owed?))).collect()
        };
        for (number, settlement) in owed {
            if let Err(error) = self.carry_out(number, settlement).await {
                telemetry::settlement_failed(&self.source, &error);
                return;
            }
        }
    }

    /// Settles one delivery, or all up to it. What fails is owed.
    pub(super) async fn settle(&self, id: &DeliveryId, settlement: Settlement) -> Result<()> {
        let result = self.carry_out(id.number, settlement).await;
        if result.is_err()
            && let Some(letter) = self.open.lock().get_mut(&id.number)
        {
            letter.owed = Some(settlement);
        }
        result
    }

    async fn carry_out(&self, number: u64, settlement: Settlement) -> Result<()> {
        match settlement {
            Settlement::Ack => self.finish(number..=number).await,
            Settlement::UpTo => self.finish(0..=number).await,
            Settlement::Extend(_) => Ok(()),
            Settlement::Retry(after) => {
                let open = self.open.lock().get(&number).copied();
                let Some(letter) = open else { return Ok(()) };
                self.letters.postpone(&[letter.id], after).await?;
                self.open.lock().remove(&number);
                Ok(())
            }
        }
    }

    async fn finish(&self, numbers: std::ops::RangeInclusive<u64>) -> Result<()> {
        let ended: Vec<(u64, OpenLetter)> =
            self.open.lock().range(numbers).map(|(number, letter)| (*number, *letter)).collect();
        if ended.is_empty() {
            return Ok(());
        }
        let redriven: Vec<_> = ended.iter().map(|(_, letter)| (letter.id, letter.marked_at)).collect();
        self.letters.finish(&redriven).await?;
        let mut open = self.open.lock();
        for (number, _) in &ended {
            open.remove(number);
        }
        Ok(())
    }
}
