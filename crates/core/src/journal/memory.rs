use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::error::Result;
use crate::journal::{Journal, Number, Spilled};

/// A journal that lives as long as its value: for tests, where a gate that is made anew over the same one stands for a restart.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax_core::Journal;
/// use hapax_core::journal::MemoryJournal;
///
/// assert!(MemoryJournal::new().replay().await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct MemoryJournal {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    undone: BTreeMap<Number, Spilled>,
}

impl MemoryJournal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Each change is one infallible call: a panic elsewhere leaves the list whole.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn append(&self, entry: &Spilled) -> Result<Number> {
        let mut list = self.list();
        let number = Number(list.next);
        list.next += 1;
        list.undone.insert(number, entry.clone());
        Ok(number)
    }

    async fn done(&self, number: Number) -> Result<()> {
        self.list().undone.remove(&number);
        Ok(())
    }

    async fn replay(&self) -> Result<Vec<(Number, Spilled)>> {
        let list = self.list();
        let mut left: Vec<_> = list.undone.iter().map(|(number, spilled)| (*number, spilled.clone())).collect();
        left.sort_by_key(|(_, spilled)| spilled.ended);
        Ok(left)
    }
}
