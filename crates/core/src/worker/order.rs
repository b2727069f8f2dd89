use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::chaos::Mutant;

/// What must be processed in order: the messages of one topic with one ordering key. Redriven letters have no topic: a
/// topic may have any name, and its messages wait for the letters of their key.
pub(super) type OrderKey = (Option<Arc<str>>, Bytes);

/// Which messages may run now.
///
/// Messages are named by the order of their arrival. A message with an ordering key runs after all earlier ones of its
/// key have come to their end; a message that failed or is busy blocks its own key only.
#[derive(Debug, Default)]
pub(super) struct RunOrder {
    entries: BTreeMap<u64, OrderEntry>,
    keys: BTreeMap<OrderKey, BTreeSet<u64>>,
    /// What may run: messages without a key, and the first one of each key.
    ready: BTreeSet<u64>,
    /// How many messages may be taken at once: for each ready one, all of its key.
    ready_messages: usize,
    delayed: BTreeSet<(Duration, u64)>,
    /// Keys of which nothing may start.
    closed: BTreeSet<OrderKey>,
    /// Whether one batch may have several messages of a key.
    takes_one_of_a_key: bool,
}

#[derive(Debug)]
struct OrderEntry {
    key: Option<OrderKey>,
    state: RunState,
    /// Whether it must run in a batch of its own.
    is_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunState {
    Waiting,
    /// Until this time, on the boot-time clock.
    Delayed(Duration),
    Running,
}

impl RunOrder {
    /// An order in which a batch has at most one message of a key: what follows depends on how that one ends.
    pub(super) fn one_of_a_key() -> Self {
        Self { takes_one_of_a_key: true, ..Self::default() }
    }

    /// Adds a message behind all others.
    pub(super) fn push(&mut self, number: u64, key: Option<OrderKey>) {
        if let Some(key) = &key {
            let numbers = self.keys.entry(key.clone()).or_default();
            self.ready_messages += usize::from(numbers.first().is_some_and(|first| self.ready.contains(first)));
            numbers.insert(number);
        }
        self.entries.insert(number, OrderEntry { key: key.clone(), state: RunState::Waiting, is_alone: false });
        self.admit(number, key.as_ref());
    }

    /// The next messages to run, at most `limit`, in the order of their arrival within each key. They count as running.
    pub(super) fn take(&mut self, limit: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(first) = self.ready.first().copied()
        {
            let is_alone = self.entries.get(&first).is_some_and(|entry| entry.is_alone);
            if is_alone && !taken.is_empty() {
                break;
            }
            let limit = if is_alone || self.takes_one_of_a_key { 1 } else { limit - taken.len() };
            taken.extend(self.take_from(first, limit));
            if is_alone {
                break;
            }
        }
        taken
    }

    /// Takes this message and those of its key that directly follow.
    fn take_from(&mut self, first: u64, limit: usize) -> Vec<u64> {
        self.clear_ready(first);
        let key = self.entries.get(&first).and_then(|entry| entry.key.as_ref());
        let followers = key.and_then(|key| self.keys.get(key));
        let followers = followers.map(|numbers| numbers.range(first..).take(limit).copied().collect());
        let candidates: Vec<u64> = followers.unwrap_or_else(|| vec![first]);
        let mut taken = Vec::new();
        for number in candidates {
            let Some(entry) = self.entries.get_mut(&number) else { break };
            if entry.state != RunState::Waiting || (entry.is_alone && number != first) {
                break;
            }
            entry.state = RunState::Running;
            taken.push(number);
        }
        taken
    }

    /// Notes that a message has come to its end, or is gone.
    pub(super) fn remove(&mut self, number: u64) {
        self.clear_ready(number);
        let Some(entry) = self.entries.remove(&number) else { return };
        if let RunState::Delayed(until) = entry.state {
            self.delayed.remove(&(until, number));
        }
        let Some(key) = entry.key else { return };
        self.leave_key(number, &key);
        if self.keys.get(&key).is_some_and(BTreeSet::is_empty) {
            self.keys.remove(&key);
            self.closed.remove(&key);
        }
        self.admit_first(&key);
    }

    /// Lets nothing more of a key start.
    pub(super) fn close(&mut self, key: &OrderKey) {
        let numbers = self.keys.get(key).into_iter().flatten();
        let ready: Vec<u64> = numbers.filter(|number| self.ready.contains(number)).copied().collect();
        ready.into_iter().for_each(|number| self.clear_ready(number));
        self.closed.insert(key.clone());
    }

    /// Lets a key go on.
    pub(super) fn open(&mut self, key: &OrderKey) {
        self.closed.remove(key);
        self.admit_first(key);
    }

    /// Whether a message of the key is held.
    pub(super) fn has(&self, key: &OrderKey) -> bool {
        self.keys.contains_key(key)
    }

    /// The first message of the key.
    pub(super) fn first_of_key(&self, key: &OrderKey) -> Option<u64> {
        self.keys.get(key)?.first().copied()
    }

    /// The messages of the key, in the order of their arrival.
    pub(super) fn of_key(&self, key: &OrderKey) -> Vec<u64> {
        self.keys.get(key).into_iter().flatten().copied().collect()
    }

    /// Whether several messages of the key are held.
    pub(super) fn has_several(&self, key: &OrderKey) -> bool {
        self.keys.get(key).is_some_and(|numbers| numbers.len() > 1)
    }

    /// Notes that a running message has no end yet. It may run again at this time.
    pub(super) fn delay(&mut self, number: u64, until: Duration) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.state = RunState::Delayed(until);
        self.delayed.insert((until, number));
        if let Some(key) = entry.key.clone() {
            if Mutant::OvertakingWithinKey.is_on() {
                self.leave_key(number, &key);
            }
            self.admit_first(&key);
        }
    }

    /// Runs a message in a batch of its own from now on.
    pub(super) fn run_alone(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.is_alone = true;
        }
    }

    /// Lets messages run whose delay has passed.
    pub(super) fn wake(&mut self, now: Duration) {
        while let Some((until, number)) = self.delayed.first().copied()
            && until <= now
        {
            self.delayed.pop_first();
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            entry.state = RunState::Waiting;
            let key = entry.key.clone();
            self.admit(number, key.as_ref());
        }
    }

    /// When the next delay passes.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// The number of messages that may be taken at once.
    pub(super) fn ready(&self) -> usize {
        self.ready_messages
    }

    /// How many messages a ready one stands for: all of its key.
    fn weight(&self, number: u64) -> usize {
        let key = self.entries.get(&number).and_then(|entry| entry.key.as_ref());
        key.and_then(|key| self.keys.get(key)).map_or(1, BTreeSet::len)
    }

    fn set_ready(&mut self, number: u64) {
        if self.ready.insert(number) {
            self.ready_messages += self.weight(number);
        }
    }

    fn clear_ready(&mut self, number: u64) {
        if self.ready.remove(&number) {
            self.ready_messages -= self.weight(number);
        }
    }

    /// Takes a message that is not ready out of its key.
    fn leave_key(&mut self, number: u64, key: &OrderKey) {
        if let Some(numbers) = self.keys.get_mut(key)
            && numbers.remove(&number)
        {
            self.ready_messages -= usize::from(numbers.first().is_some_and(|first| self.ready.contains(first)));
        }
    }

    fn admit(&mut self, number: u64, key: Option<&OrderKey>) {
        match key {
            None => self.set_ready(number),
            Some(key) => self.admit_first(key),
        }
    }

    /// Lets the first message of a key run, unless one of the key runs or the first one is delayed.
    fn admit_first(&mut self, key: &OrderKey) {
        let Some(numbers) = self.keys.get(key).filter(|_| !self.closed.contains(key)) else { return };
        let is = |number: &u64, state: RunState| self.entries.get(number).is_some_and(|entry| entry.state == state);
        // The running ones of a key are its first ones.
        let Some(first) = numbers.first().copied() else { return };
        let is_running = numbers
            .iter()
            .take_while(|number| !is(number, RunState::Waiting))
            .any(|number| is(number, RunState::Running));
        if !is_running && is(&first, RunState::Waiting) {
            self.set_ready(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(order: &RunOrder) -> usize {
        order.ready.iter().map(|number| order.weight(*number)).sum()
    }

    #[test]
    fn the_number_of_ready_messages_is_that_of_a_count() {
        for one_of_a_key in [false, true] {
            let mut order = if one_of_a_key { RunOrder::one_of_a_key() } else { RunOrder::default() };
            // A small generator: the core has no random numbers.
            let (mut random, mut running, mut number) = (1_u64, Vec::new(), 0);
            let mut next = |of: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(random >> 33).unwrap_or_default() % of
            };
            for step in 0..20_000_u64 {
                let key =
                    |n: usize| -> OrderKey { (Some("orders".into()), vec![u8::try_from(n).unwrap_or(u8::MAX)].into()) };
                match next(8) {
                    0..3 => {
                        number += 1;
                        order.push(number, (next(4) > 0).then(|| key(next(6))));
                    }
                    3 => running.extend(order.take(1 + next(10))),
                    4 if !running.is_empty() => order.remove(running.swap_remove(next(running.len()))),
                    5 if !running.is_empty() => {
                        let number = running.swap_remove(next(running.len()));
                        if next(3) == 0 {
                            order.run_alone(number);
                        }
                        order.delay(number, Duration::from_secs(step + 5));
                    }
                    6 if next(2) == 0 => order.close(&key(next(6))),
                    6 => order.open(&key(next(6))),
                    7 if next(20) == 0 => order.remove(1 + next(usize::try_from(number).unwrap_or(0) + 1) as u64),
                    _ => order.wake(Duration::from_secs(step)),
                }
                assert_eq!(order.ready(), counted(&order), "step {step}: {order:?}");
            }
            assert!(number > 1000);
        }
    }
}
