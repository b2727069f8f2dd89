//! Helpers for tests of journals: directories, entries, and the errors that were logged.

use std::fmt::{Debug, Write};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::journal::{FileJournal, FileJournalSettings, Spilled, StorePlace};
use hapax_core::machine::{Claim, Complete};
use hapax_core::runtime::Tokio;
use hapax_core::{Fingerprint, Journal, Owner, RecordKey, Rule, Seconds, Timestamp, Token};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The n-th entry. A larger n is a younger entry.
pub(crate) fn spilled(n: u8, answer: &[u8]) -> Spilled {
    let claim = Claim { owner: Owner([n; 16]), token: Token(1000 + u64::from(n)) };
    let complete = Complete {
        claim,
        fingerprint: Fingerprint::from_parts(Rule(3), [n; 12]),
        answer: answer.to_vec().into(),
        retention: Seconds(86_400),
        ended: Timestamp(1_700_000_000_000_000 + u64::from(n)),
        age: Duration::from_micros(1_234_567),
    };
    Spilled { rk: RecordKey::from_bytes([n; 16]), complete, unknown_retention: Seconds(2_592_000) }
}

pub(crate) fn name(spilled: &Spilled) -> u8 {
    spilled.rk.as_bytes()[0]
}

/// The place of the store in these tests.
pub(crate) fn place() -> StorePlace {
    StorePlace::new("redis://a:6379/0")
}

/// A directory for one test.
pub(crate) struct JournalFolder(pub(crate) PathBuf);

impl JournalFolder {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let n = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("hapax-journal-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Names of files, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The path of the only file.
    pub(crate) fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        self.0.join(&files[0])
    }

    pub(crate) fn open(&self) -> FileJournal {
        self.open_with(FileJournalSettings::default())
    }

    pub(crate) fn open_with(&self, settings: FileJournalSettings) -> FileJournal {
        FileJournal::with(&self.0, &place(), Arc::new(Tokio::current()), settings).unwrap()
    }

    /// Opens the journal of another store.
    pub(crate) fn open_for(&self, place: &StorePlace) -> FileJournal {
        FileJournal::open(&self.0, place).unwrap()
    }

    /// Writes a file as if a process had died and left it.
    pub(crate) fn write_file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for JournalFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The bytes of a file with these entries, none of them done.
pub(crate) async fn encode_file(entries: &[Spilled]) -> Vec<u8> {
    let folder = JournalFolder::new();
    let journal = folder.open();
    for entry in entries {
        journal.append(entry).await.unwrap();
    }
    fs::read(folder.file()).unwrap()
}

pub(crate) async fn undone_in(journal: &FileJournal) -> Vec<u8> {
    let undone = journal.replay().await.unwrap();
    undone.iter().map(|(_, spilled)| name(spilled)).collect()
}

pub(crate) async fn finish_and_close(journal: &FileJournal) {
    for (number, _) in journal.replay().await.unwrap() {
        journal.done(number).await.unwrap();
    }
    journal.close().await;
}

/// Runs the body and returns the errors that it logs.
pub(crate) fn collect_errors<T>(body: impl FnOnce() -> T) -> (T, Vec<String>) {
    collect_logs(Level::ERROR, body)
}

/// Runs the body and returns what it logs at this level.
pub(crate) fn collect_logs<T>(level: Level, body: impl FnOnce() -> T) -> (T, Vec<String>) {
    let collector = LogCollector { level, lines: Arc::default() };
    let output = tracing::subscriber::with_default(collector.clone(), body);
    let lines = std::mem::take(&mut *collector.lines.lock().unwrap());
    (output, lines)
}

#[derive(Clone)]
struct LogCollector {
    level: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for LogCollector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == self.level {
            let mut text = EventText(String::new());
            event.record(&mut text);
            self.lines.lock().unwrap().push(text.0);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
