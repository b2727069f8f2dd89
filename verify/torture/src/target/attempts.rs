//! The journal of the service: which attempts it got, how it answered them, and which of them a fault may have touched.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::target::faults::FaultWindow;

/// How long after an answer the worker may take until its record has it, in milliseconds.
const RECORDED_WITHIN: u64 = 1000;

/// One attempt, as the service saw it. Times are milliseconds since the unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceAttempt {
    pub(super) began: u64,
    pub(super) has_effect: bool,
    /// When it answered, and with which status. None if it never did.
    pub(super) answer: Option<(u64, u16)>,
    /// Whether a fault of a process may have kept the worker from knowing the answer.
    pub(super) is_touched: bool,
}

impl ServiceAttempt {
    /// Whether the service said nothing, or something that tells nothing.
    pub(super) fn is_unknown(&self) -> bool {
        self.answer.is_none_or(|(_, status)| status >= 500)
    }

    /// Whether the service rejected the message for good.
    pub(super) fn is_rejected(&self) -> bool {
        self.answer.is_some_and(|(_, status)| status == 422)
    }

    /// Whether the service asked to be tried again later.
    pub(super) fn is_refused(&self) -> bool {
        self.answer.is_some_and(|(_, status)| status == 429)
    }

    /// Whether the worker must know that nothing is left to do.
    pub(super) fn is_surely_final(&self) -> bool {
        !self.is_touched && self.answer.is_some_and(|(_, status)| matches!(status, 200..=299 | 422))
    }
}

/// All attempts, by key and in their order.
#[derive(Debug)]
pub(super) struct ServiceJournal {
    attempts: BTreeMap<String, Vec<ServiceAttempt>>,
    /// The keys of all attempts, in the order in which they began.
    began: Vec<String>,
    /// Whether a fault of a process happened: the worker may have begun attempts that the service never saw.
    has_faults: bool,
}

impl ServiceJournal {
    pub(super) fn read(path: &Path, windows: &[FaultWindow]) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text, windows)
    }

    pub(super) fn parse(text: &str, windows: &[FaultWindow]) -> Result<Self> {
        let mut attempts: BTreeMap<String, BTreeMap<(u64, String), ServiceAttempt>> = BTreeMap::new();
        let mut began = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [at, step, key, number, token, status] = words[..] else { anyhow::bail!("a line is damaged: {line}") };
            let (at, token): (u64, u64) = (at.parse()?, token.parse()?);
            // Tokens grow, so they order the attempts of a key.
            let attempt = attempts.entry(key.to_owned()).or_default().entry((token, number.to_owned())).or_default();
            match step {
                "began" => {
                    attempt.began = at;
                    began.push(key.to_owned());
                }
                "effect" => attempt.has_effect = true,
                "answering" => attempt.answer = Some((at, status.parse()?)),
                _ => anyhow::bail!("a line is damaged: {line}"),
            }
        }
        let in_order = attempts.into_iter().map(|(key, attempts)| (key, attempts.into_values().collect::<Vec<_>>()));
        let mut journal: BTreeMap<String, Vec<ServiceAttempt>> = in_order.collect();
        for attempt in journal.values_mut().flatten() {
            let ended = attempt.answer.map_or(u64::MAX, |(at, _)| at + RECORDED_WITHIN);
            attempt.is_touched = windows.iter().any(|window| window.from <= ended && attempt.began <= window.to);
        }
        Ok(Self { attempts: journal, began, has_faults: !windows.is_empty() })
    }

    pub(super) fn began(&self) -> &[String] {
        &self.began
    }

    pub(super) fn has_faults(&self) -> bool {
        self.has_faults
    }

    pub(super) fn of(&self, key: &str) -> &[ServiceAttempt] {
        self.attempts.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.attempts.keys()
    }

    pub(super) fn effects(&self, key: &str) -> usize {
        self.of(key).iter().filter(|attempt| attempt.has_effect).count()
    }

    pub(super) fn unknown_attempts(&self) -> usize {
        self.attempts.values().flatten().filter(|attempt| attempt.is_unknown()).count()
    }

    pub(super) fn attempts(&self) -> usize {
        self.attempts.values().map(Vec::len).sum()
    }

    pub(super) fn certain_attempts(&self) -> usize {
        self.attempts.values().flatten().filter(|attempt| !attempt.is_touched).count()
    }
}
