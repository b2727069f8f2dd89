//! What happened to which message, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{DeadLetter, DeadLetters, Message};
use parking_lot::Mutex;

use crate::memory_dead_letters::MemoryDeadLetters;

/// The header with the number of a message: its place in the order of publishing.
pub(super) const NUMBER: &str = "Suite-Number";

/// The number of a message.
///
/// # Panics
/// If the source did not deliver the message as it was published.
pub(super) fn number_of(message: &Message) -> usize {
    let number = message.headers.all(NUMBER).next().map(|number| String::from_utf8_lossy(number).parse());
    number.and_then(std::result::Result::ok).expect("a message arrives with its headers")
}

/// The starts and the ends of all messages.
#[derive(Default)]
pub(super) struct MessageHistory(Mutex<Vec<(usize, Mark)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Started,
    Ended,
}

impl MessageHistory {
    pub(super) fn started(&self, number: usize) {
        self.0.lock().push((number, Mark::Started));
    }

    /// Notes that a message has its effect, or its dead letter.
    pub(super) fn ended(&self, number: usize) {
        self.0.lock().push((number, Mark::Ended));
    }

    /// The messages that have an effect or a dead letter.
    pub(super) fn all_ended(&self) -> BTreeSet<usize> {
        self.0.lock().iter().filter(|(_, mark)| *mark == Mark::Ended).map(|(number, _)| *number).collect()
    }

    /// Asserts that no message started before the one that precedes it had come to its end.
    pub(super) fn check_order(&self, precedes: &BTreeMap<usize, usize>) {
        let (mut ended, history) = (BTreeSet::new(), self.0.lock());
        for (number, mark) in &*history {
            match (mark, precedes.get(number)) {
                (Mark::Ended, _) => drop(ended.insert(*number)),
                (Mark::Started, Some(earlier)) => {
                    assert!(ended.contains(earlier), "{number} overtakes {earlier} of its ordering key: {history:?}");
                }
                (Mark::Started, None) => {}
            }
        }
    }
}

/// Dead letters in memory. A letter that is written is the end of its message.
#[derive(Debug)]
pub(super) struct NotedLetters {
    pub(super) letters: MemoryDeadLetters,
    pub(super) history: Arc<MessageHistory>,
}

impl std::fmt::Debug for MessageHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MessageHistory({})", self.0.lock().len())
    }
}

#[async_trait]
impl DeadLetters for NotedLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let numbers: Vec<usize> = letters.iter().map(|letter| number_of(&letter.message)).collect();
        let results = self.letters.put(letters).await;
        for (number, _) in numbers.into_iter().zip(&results).filter(|(_, result)| result.is_ok()) {
            self.history.ended(number);
        }
        results
    }
}
