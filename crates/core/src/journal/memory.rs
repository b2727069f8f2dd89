use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::error::Result;
use crate::journal::{EntryNumber, Journal, Spilled};

/// A journal in memory, for tests. A second gate over the same journal stands for a restarted process.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    undone: BTreeMap<EntryNumber, Spilled>,
}

impl MemoryJournal {
    /// Creates an empty journal.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn append(&self, entry: &Spilled) -> Result<EntryNumber> {
        let mut entries = self.entries.lock();
        let number = EntryNumber(entries.next);
        entries.next += 1;
        entries.undone.insert(number, entry.clone());
        Ok(number)
    }

    async fn done(&self, number: EntryNumber) -> Result<()> {
        self.entries.lock().undone.remove(&number);
        Ok(())
    }

    async fn replay(&self) -> Result<Vec<(EntryNumber, Spilled)>> {
        let entries = self.entries.lock();
        let mut undone: Vec<_> = entries.undone.iter().map(|(number, spilled)| (*number, spilled.clone())).collect();
        undone.sort_by_key(|(_, spilled)| spilled.complete.ended);
        Ok(undone)
    }

    fn undone(&self) -> usize {
        self.entries.lock().undone.len()
    }
}
