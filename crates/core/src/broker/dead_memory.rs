use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, KeptLetter, LetterChange,
    LetterWord, ListedLetter, ListedReason, MarkedLetter, SeenLetter,
};
use crate::error::{Error, ErrorKind, Result};
use crate::record::Timestamp;
use crate::runtime::Runtime;

/// Dead letters in the memory of this process, for tests. They are lost when it ends.
#[derive(Debug)]
pub struct MemoryDeadLetterStore {
    runtime: Arc<dyn Runtime>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the number of their last write.
    letters: BTreeMap<u64, Slot>,
    numbers: BTreeMap<DeadLetterId, u64>,
    last: u64,
}

#[derive(Debug)]
struct Slot {
    letter: DeadLetter,
    marked_at: Option<Timestamp>,
    /// When a marked letter can be taken.
    free_at: Timestamp,
    /// Until when a worker has it.
    taken_until: Option<Timestamp>,
}

impl Slot {
    /// Why a write must not change the letter. None if it may.
    fn refuses(&self, written: u64, seen: &SeenLetter, now: Timestamp) -> Option<LetterChange> {
        if *seen != seen_as(written, self.marked_at) {
            return Some(LetterChange::Stale);
        }
        self.taken_until.filter(|until| *until > now).map(LetterChange::Taken)
    }
}

fn seen_as(written: u64, marked_at: Option<Timestamp>) -> SeenLetter {
    SeenLetter { written: written.to_string(), marked_at }
}

impl MemoryDeadLetterStore {
    /// No letters, and the wall clock of this runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, kept: Mutex::default() }
    }
}

impl Kept {
    fn put(&mut self, letter: DeadLetter) {
        self.remove(letter.id);
        self.last += 1;
        self.numbers.insert(letter.id, self.last);
        self.letters.insert(self.last, Slot { letter, marked_at: None, free_at: Timestamp(0), taken_until: None });
    }

    fn remove(&mut self, id: DeadLetterId) -> bool {
        let number = self.numbers.remove(&id);
        number.is_some_and(|number| self.letters.remove(&number).is_some())
    }

    fn move_end(&mut self, ids: &[DeadLetterId], free_at: Timestamp, taken_until: Option<Timestamp>) {
        for id in ids {
            let can_move =
                |slot: &&mut Slot| slot.marked_at.is_some() && (taken_until.is_none() || slot.taken_until.is_some());
            if let Some(slot) = self.slot(*id).filter(can_move) {
                (slot.free_at, slot.taken_until) = (free_at, taken_until);
            }
        }
    }

    fn slot(&mut self, id: DeadLetterId) -> Option<&mut Slot> {
        self.numbered(id).map(|(_, slot)| slot)
    }

    /// The letter, and the number of its last write.
    fn numbered(&mut self, id: DeadLetterId) -> Option<(u64, &mut Slot)> {
        let number = *self.numbers.get(&id)?;
        Some((number, self.letters.get_mut(&number)?))
    }
}

#[async_trait]
impl DeadLetters for MemoryDeadLetterStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let mut kept = self.kept.lock();
        let count = letters.len();
        letters.into_iter().for_each(|letter| kept.put(letter));
        (0..count).map(|_| Ok(())).collect()
    }
}

#[async_trait]
impl DeadLetterStore for MemoryDeadLetterStore {
    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>> {
        let unreadable = |error| Error::new(ErrorKind::Invalid, "this is no cursor of a list").caused_by(error);
        let after: u64 = after.map_or(Ok(0), |cursor| cursor.as_str().parse()).map_err(unreadable)?;
        let kept = self.kept.lock();
        let behind = kept.letters.range(after.saturating_add(1)..).take(limit);
        Ok(behind.map(|(number, slot)| listed(*number, slot)).collect())
    }

    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>> {
        let kept = |(number, slot): (u64, &mut Slot)| KeptLetter {
            letter: slot.letter.clone(),
            marked_at: slot.marked_at,
            seen: seen_as(number, slot.marked_at),
        };
        Ok(self.kept.lock().numbered(id).map(kept))
    }

    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange> {
        let now = self.runtime.wall_now();
        let mut kept = self.kept.lock();
        let Some((number, slot)) = kept.numbered(id) else { return Ok(LetterChange::Missing) };
        let reason = slot.letter.reason;
        let reason = word.filter(|word| word.replaces().contains(&reason)).map_or(reason, LetterWord::reason);
        if number.to_string() == seen.written && slot.marked_at.is_some() && slot.letter.reason == reason {
            return Ok(LetterChange::Yes);
        }
        if let Some(refused) = slot.refuses(number, seen, now) {
            return Ok(refused);
        }
        slot.letter.reason = reason;
        (slot.marked_at, slot.free_at) = (Some(later(now, slot.marked_at)), now);
        Ok(LetterChange::Yes)
    }

    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>> {
        let now = self.runtime.wall_now();
        let mut kept = self.kept.lock();
        let is_it = |slot: &&mut Slot| slot.marked_at == Some(marked_at) && slot.letter.reason == DeadReason::NotDone;
        let used_up = kept.slot(id).filter(is_it).map(|slot| {
            slot.letter.reason = DeadReason::OutcomeUnknown;
            *slot.marked_at.insert(later(now, slot.marked_at))
        });
        Ok(used_up)
    }

    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange> {
        let now = self.runtime.wall_now();
        let mut kept = self.kept.lock();
        let Some((number, slot)) = kept.numbered(id) else { return Ok(LetterChange::Missing) };
        let refused = slot.refuses(number, seen, now);
        if refused.is_none() {
            kept.remove(id);
        }
        Ok(refused.unwrap_or(LetterChange::Yes))
    }

    fn tells_ordering_keys(&self) -> bool {
        true
    }

    async fn keys_with_letters(&self, source: &str, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let kept = self.kept.lock();
        let letters = || kept.letters.values().map(|slot| &slot.letter).filter(|letter| &*letter.source == source);
        let has_letter = |key: &Bytes| letters().any(|letter| letter.message.ordering_key.as_ref() == Some(key));
        Ok(keys.into_iter().filter(has_letter).collect())
    }

    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>> {
        let now = self.runtime.wall_now();
        let mut kept = self.kept.lock();
        let mut marked: Vec<&mut Slot> = kept.letters.values_mut().filter(|slot| slot.marked_at.is_some()).collect();
        marked.retain(|slot| &*slot.letter.source == source && slot.free_at <= now);
        marked.sort_by_key(|slot| (slot.marked_at, slot.letter.id));
        let taken = marked.into_iter().take(limit).filter_map(|slot| {
            slot.free_at = now.plus(lease);
            slot.taken_until = Some(slot.free_at);
            Some(MarkedLetter { letter: slot.letter.clone(), marked_at: slot.marked_at? })
        });
        Ok(taken.collect())
    }

    async fn extend(&self, ids: &[DeadLetterId], lease: Duration) -> Result<()> {
        let free_at = self.runtime.wall_now().plus(lease);
        self.kept.lock().move_end(ids, free_at, Some(free_at));
        Ok(())
    }

    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()> {
        self.kept.lock().move_end(ids, self.runtime.wall_now().plus(by), None);
        Ok(())
    }

    async fn finish(&self, redriven: &[(DeadLetterId, Timestamp)]) -> Result<()> {
        let mut kept = self.kept.lock();
        for (id, marked_at) in redriven {
            if kept.slot(*id).is_some_and(|slot| slot.marked_at == Some(*marked_at)) {
                kept.remove(*id);
            }
        }
        Ok(())
    }
}

/// A time behind the earlier mark: each change of a letter has another one.
fn later(now: Timestamp, earlier: Option<Timestamp>) -> Timestamp {
    earlier.map_or(now, |earlier| now.max(Timestamp(earlier.0 + 1)))
}

fn listed(number: u64, slot: &Slot) -> ListedLetter {
    let letter = &slot.letter;
    ListedLetter {
        id: letter.id,
        reason: ListedReason::Known(letter.reason),
        attempts: letter.attempts,
        namespace: letter.namespace.to_string(),
        source: letter.source.to_string(),
        operation: letter.operation,
        at: letter.at,
        marked_at: slot.marked_at,
        seen: seen_as(number, slot.marked_at),
        size: u64::try_from(letter.message.payload.len()).unwrap_or(u64::MAX),
        cursor: DeadCursor::new(number.to_string()),
    }
}
