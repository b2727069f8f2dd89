mod redrives;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::broker::{DeadLetter, DeadLetterId, DeadLetters, Source};
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use redrives::Redrives;

/// Dead letters in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryDeadLetters(Arc<SharedLetters>);

#[derive(Default)]
struct SharedLetters {
    state: Mutex<LettersState>,
    changed: Notify,
}

#[derive(Default)]
struct LettersState {
    letters: BTreeMap<DeadLetterId, DeadLetter>,
    writes: usize,
    failing: usize,
    failures: usize,
    /// Marked for a redrive.
    marked: BTreeSet<DeadLetterId>,
    /// Delivered by a redrive, and not written again since.
    given: BTreeSet<DeadLetterId>,
    redriven: u64,
}

impl fmt::Debug for MemoryDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDeadLetters({})", self.0.state.lock().letters.len())
    }
}

impl MemoryDeadLetters {
    /// No letters.
    pub fn new() -> Self {
        Self::default()
    }

    /// The letters, by their ids.
    pub fn letters(&self) -> Vec<DeadLetter> {
        self.0.state.lock().letters.values().cloned().collect()
    }

    /// How often a letter was written, repeated ones too.
    pub fn writes(&self) -> usize {
        self.0.state.lock().writes
    }

    /// How many calls failed.
    pub fn failures(&self) -> usize {
        self.0.state.lock().failures
    }

    /// Lets the next calls fail: nothing is written.
    pub fn fail(&self, calls: usize) {
        self.0.state.lock().failing = calls;
    }

    /// Marks a letter: [`MemoryDeadLetters::redrives`] delivers its message once more.
    pub fn redrive(&self, id: DeadLetterId) {
        self.0.state.lock().marked.insert(id);
        self.0.changed.notify_waiters();
    }

    /// The marked letters, as a source for a worker of its own. A letter goes away when its message is acknowledged,
    /// and stays if the message becomes a dead letter again.
    pub fn redrives(&self, name: &str) -> Box<dyn Source> {
        Box::new(Redrives { letters: self.clone(), name: name.into() })
    }
}

#[async_trait]
impl DeadLetters for MemoryDeadLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let mut state = self.0.state.lock();
        if state.failing > 0 {
            state.failing -= 1;
            state.failures += 1;
            let failed = || Err(Error::new(ErrorKind::NotApplied, "the test lets this call fail"));
            return letters.iter().map(|_| failed()).collect();
        }
        let count = letters.len();
        for letter in letters {
            state.writes += 1;
            state.marked.remove(&letter.id);
            state.given.remove(&letter.id);
            state.letters.insert(letter.id, letter);
        }
        (0..count).map(|_| Ok(())).collect()
    }
}
