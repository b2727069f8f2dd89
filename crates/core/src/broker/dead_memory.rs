use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, KeptLetter, ListedLetter,
    ListedReason, MarkedLetter,
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
        self.letters.insert(self.last, Slot { letter, marked_at: None, free_at: Timestamp(0) });
    }

    fn remove(&mut self, id: DeadLetterId) -> bool {
        let number = self.numbers.remove(&id);
        number.is_some_and(|number| self.letters.remove(&number).is_some())
    }

    fn slot(&mut self, id: DeadLetterId) -> Option<&mut Slot> {
        self.letters.get_mut(self.numbers.get(&id)?)
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
        let mut kept = self.kept.lock();
        Ok(kept.slot(id).map(|slot| KeptLetter { letter: slot.letter.clone(), marked_at: slot.marked_at }))
    }

    async fn mark(&self, id: DeadLetterId) -> Result<bool> {
        let now = self.runtime.wall_now();
        let mut kept = self.kept.lock();
        let slot = kept.slot(id);
        let exists = slot.is_some();
        if let Some(slot) = slot.filter(|slot| slot.marked_at.is_none()) {
            (slot.marked_at, slot.free_at) = (Some(now), now);
        }
        Ok(exists)
    }

    async fn mark_as(&self, id: DeadLetterId, from: DeadReason, to: DeadReason) -> Result<bool> {
        if let Some(slot) = self.kept.lock().slot(id).filter(|slot| slot.letter.reason == from) {
            slot.letter.reason = to;
        }
        self.mark(id).await
    }

    async fn remove(&self, id: DeadLetterId) -> Result<bool> {
        Ok(self.kept.lock().remove(id))
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
            Some(MarkedLetter { letter: slot.letter.clone(), marked_at: slot.marked_at? })
        });
        Ok(taken.collect())
    }

    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()> {
        let free_at = self.runtime.wall_now().plus(by);
        let mut kept = self.kept.lock();
        for id in ids {
            if let Some(slot) = kept.slot(*id).filter(|slot| slot.marked_at.is_some()) {
                slot.free_at = free_at;
            }
        }
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
        size: u64::try_from(letter.message.payload.len()).unwrap_or(u64::MAX),
        cursor: DeadCursor::new(number.to_string()),
    }
}
