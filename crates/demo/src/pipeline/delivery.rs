//! Notes about every delivery that a worker or a consumer processed. They survive `kill -9`, unlike a counter.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use hapax::broker::{Coordinates, Job, Message, Position, Process, Verdict};
use parking_lot::Mutex;

/// Why a message was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// Somebody put it in: for the first time, or as a copy of another message.
    Sent,
    /// The queue delivered it before, to a process that died, stood still or failed.
    Returned,
    /// The demo put a copy of an earlier message in, as a broker does that delivers twice.
    Redelivered,
}

/// The header of a copy that the demo puts in.
pub(super) const REDELIVERED: &str = "Demo-Redelivered";

impl Cause {
    /// Why the message of this job was delivered.
    pub(super) fn of(job: &Job) -> Self {
        match job.attempt {
            _ if is_redelivered(&job.message) => Self::Redelivered,
            Some(attempt) if attempt > 1 => Self::Returned,
            _ => Self::Sent,
        }
    }

    /// The name in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Returned => "returned",
            Self::Redelivered => "redelivered",
        }
    }

    /// The cause with this name.
    pub(super) fn from_name(name: &str) -> Self {
        [Self::Returned, Self::Redelivered].into_iter().find(|cause| cause.name() == name).unwrap_or(Self::Sent)
    }
}

fn is_redelivered(message: &Message) -> bool {
    message.headers.all(REDELIVERED).next().is_some()
}

/// Writes down which deliveries were copies.
#[derive(Debug)]
pub(super) struct NotedProcess {
    process: Arc<dyn Process>,
    notes: Mutex<File>,
}

impl NotedProcess {
    /// Appends to this file.
    pub(super) fn new(process: Arc<dyn Process>, notes: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(notes);
        let file = file.with_context(|| format!("cannot open {}", notes.display()))?;
        Ok(Self { process, notes: Mutex::new(file) })
    }
}

#[async_trait]
impl Process for NotedProcess {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let notes: Vec<String> =
            jobs.iter().map(|job| format!("{} {}\n", Cause::of(job).name(), place(&job.message))).collect();
        let verdicts = self.process.process(jobs).await;
        let is_caught = |verdict: &Verdict| matches!(verdict, Verdict::Done { caught: true });
        let caught = notes.iter().zip(&verdicts).filter(|(_, verdict)| is_caught(verdict));
        let lines: String = caught.map(|(note, _)| note.as_str()).collect();
        // A note that is missing makes the table smaller; the audit does not use it.
        let _ = self.notes.lock().write_all(lines.as_bytes());
        verdicts
    }
}

/// Where a message lies at its broker, as text without blanks. Empty in a file, whose queue counts deliveries.
pub(super) fn place(message: &Message) -> String {
    match &message.coordinates {
        Some(Coordinates { origin, partition, position: Position::Number(number) }) => {
            format!("{origin}/{partition}/{number}")
        }
        Some(Coordinates { position: Position::Id(_), .. }) | None => String::new(),
    }
}

/// The copies that the processes of one role have caught.
#[derive(Debug, Default, Clone)]
pub(super) struct CaughtCopies(Vec<Cause>);

impl CaughtCopies {
    /// Reads the notes in these files. A process that processed nothing has none. A message from one of these places
    /// has had its effect, so that a copy from there is the same message, which came back.
    pub(super) fn read<'f>(files: impl IntoIterator<Item = &'f PathBuf>, places: &HashSet<String>) -> Self {
        let text: String = files.into_iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        let mut seen = HashSet::new();
        let cause = |line: &str| {
            let (cause, place) = line.split_once(' ').unwrap_or((line, ""));
            let is_known = !place.is_empty() && (places.contains(place) || !seen.insert(place.to_owned()));
            if is_known { Cause::Returned } else { Cause::from_name(cause) }
        };
        Self(text.lines().map(cause).collect())
    }

    /// The number of copies that were delivered for this reason.
    pub(super) fn count(&self, cause: Cause) -> u64 {
        self.0.iter().filter(|noted| **noted == cause).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_from_a_known_place_is_a_message_that_came_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "sent \nsent \nreturned \nsent k/0/1\nsent k/0/2\nsent k/0/2\nredelivered k/0/3\n")
            .unwrap();
        let caught = CaughtCopies::read([&file.path().to_owned()], &["k/0/1".to_owned()].into());
        let counts = [Cause::Sent, Cause::Returned, Cause::Redelivered].map(|cause| caught.count(cause));
        assert_eq!(counts, [3, 3, 1]);
    }
}
