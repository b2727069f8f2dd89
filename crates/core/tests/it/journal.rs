//! The journals: what was appended and is not done comes back, whatever happened in between.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use hapax_core::journal::{FileJournal, FileJournalSettings, MemoryJournal, Number, Spilled};
use hapax_core::machine::{Claim, Complete};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{ErrorKind, Fingerprint, Journal, Owner, RecordKey, Rule, Seconds, Timestamp, Token};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The n-th entry. Each has another age.
fn spilled(n: u8, answer: &[u8]) -> Spilled {
    let claim = Claim { owner: Owner([n; 16]), token: Token(1000 + u64::from(n)) };
    let complete = Complete {
        claim,
        fingerprint: Fingerprint::from_parts(Rule(3), [n; 12]),
        answer: answer.to_vec().into(),
        retention: Seconds(86_400),
        age: Duration::from_micros(1_234_567),
    };
    Spilled {
        rk: RecordKey::from_bytes([n; 16]),
        complete,
        unknown_retention: Seconds(2_592_000),
        ended: Timestamp(1_700_000_000_000_000 + u64::from(n)),
    }
}

fn name(spilled: &Spilled) -> u8 {
    spilled.rk.as_bytes()[0]
}

/// A directory for one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let n = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("hapax-journal-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Names of files, sorted.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The only file in it.
    fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        self.0.join(&files[0])
    }

    fn open(&self) -> FileJournal {
        self.open_with(FileJournalSettings::default())
    }

    fn open_with(&self, settings: FileJournalSettings) -> FileJournal {
        FileJournal::open(&self.0, Arc::new(Tokio::current()), settings).unwrap()
    }

    /// Puts a file there as if a process had died over it.
    fn leave(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The bytes of a file that holds these entries, none of them done.
async fn file_of(entries: &[Spilled]) -> Vec<u8> {
    let folder = Folder::new();
    let journal = folder.open();
    for entry in entries {
        journal.append(entry).await.unwrap();
    }
    fs::read(folder.file()).unwrap()
}

async fn left_in(journal: &FileJournal) -> Vec<u8> {
    let left = journal.replay().await.unwrap();
    left.iter().map(|(_, spilled)| name(spilled)).collect()
}

async fn finish(journal: &FileJournal) {
    for (number, _) in journal.replay().await.unwrap() {
        journal.done(number).await.unwrap();
    }
    journal.close().await;
}

#[tokio::test]
async fn answers_of_every_size_come_back_as_they_were() {
    let folder = Folder::new();
    let big: Vec<u8> = (0..2_u32 << 20).map(|n| n.to_le_bytes()[1]).collect();
    let entries = [spilled(1, b"short"), spilled(2, b""), spilled(3, &big), spilled(4, b"last")];
    let journal = folder.open();
    try_join_all(entries.iter().map(|entry| journal.append(entry))).await.unwrap();
    journal.close().await;

    let again = folder.open().replay().await.unwrap();
    for ((_, found), entry) in again.iter().zip(&entries) {
        assert!(found.complete.answer == entry.complete.answer);
        assert_eq!(fields(found), fields(entry));
    }
    assert_eq!(again.len(), entries.len());
}

fn fields(spilled: &Spilled) -> impl Debug + PartialEq + use<> {
    let complete = &spilled.complete;
    (
        (spilled.rk, complete.claim, complete.fingerprint),
        (complete.retention, spilled.unknown_retention),
        (complete.age, spilled.ended),
    )
}

#[tokio::test]
async fn what_is_done_does_not_come_back() {
    let folder = Folder::new();
    let journal = folder.open();
    let mut numbers = Vec::new();
    for n in 1..=4 {
        numbers.push(journal.append(&spilled(n, b"answer")).await.unwrap());
    }
    journal.done(numbers[1]).await.unwrap();
    journal.done(numbers[3]).await.unwrap();
    assert_eq!(left_in(&journal).await, [1, 3]);
    journal.close().await;

    let next = folder.open();
    let left = next.replay().await.unwrap();
    next.done(left[0].0).await.unwrap();
    next.close().await;
    assert_eq!(left_in(&folder.open()).await, [3]);
}

#[tokio::test]
async fn an_entry_that_is_done_twice_or_was_never_there_is_done() {
    let folder = Folder::new();
    let journal = folder.open();
    let number = journal.append(&spilled(1, b"")).await.unwrap();
    for number in [number, number, Number(12345)] {
        journal.done(number).await.unwrap();
    }
}

#[tokio::test]
async fn the_oldest_comes_first_over_all_files() {
    let folder = Folder::new();
    let entry = |n| spilled(n, b"answer");
    for (file, ages) in [("b", [4, 1]), ("a", [5, 2])] {
        let bytes = file_of(&ages.map(entry)).await;
        folder.leave(&format!("spill-{file}.journal"), &bytes);
    }
    let journal = folder.open();
    journal.append(&entry(3)).await.unwrap();
    assert_eq!(left_in(&journal).await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_memory_journal_keeps_what_is_not_done_by_age() {
    let journal = MemoryJournal::new();
    journal.append(&spilled(3, b"")).await.unwrap();
    let second = journal.append(&spilled(2, b"")).await.unwrap();
    journal.append(&spilled(1, b"")).await.unwrap();
    journal.done(second).await.unwrap();
    let left = journal.replay().await.unwrap();
    let names: Vec<u8> = left.iter().map(|(_, spilled)| name(spilled)).collect();
    assert_eq!(names, [1, 3]);
}

#[tokio::test]
async fn appends_at_once_are_all_there_after_a_crash() {
    let folder = Folder::new();
    let journal = &folder.open();
    let appends = (0..50).map(|n| async move { journal.append(&spilled(n, &[n; 1000])).await.unwrap() });
    let numbers: BTreeSet<Number> = join_all(appends).await.into_iter().collect();
    assert_eq!(numbers.len(), 50);

    let after = Folder::new();
    after.leave("spill-1.journal", &fs::read(folder.file()).unwrap());
    let left = left_in(&after.open()).await;
    assert_eq!(left, (0..50).collect::<Vec<u8>>());
}

#[tokio::test]
async fn an_append_cut_short_at_any_byte_loses_only_itself() {
    let entries = [spilled(1, b"one"), spilled(2, b"two"), spilled(3, b"three")];
    let before = file_of(&entries[..2]).await.len();
    let whole = file_of(&entries).await;
    for len in before..whole.len() {
        let folder = Folder::new();
        let path = folder.leave("spill-1.journal", &whole[..len]);
        let (journal, errors) = errors_of(|| folder.open());
        assert_eq!(left_in(&journal).await, [1, 2], "cut at {len}");
        assert_eq!(fs::metadata(&path).unwrap().len(), before as u64);
        assert_eq!(errors, Vec::<String>::new());
        finish(&journal).await;
        assert_eq!(folder.files(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_damaged_file_is_reported_read_and_kept() {
    let entries = [1, 2, 3].map(|n| spilled(n, b"a secret"));
    let mut bytes = file_of(&entries).await;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let folder = Folder::new();
    folder.leave("spill-1.journal", &bytes);

    let (journal, errors) = errors_of(|| folder.open());
    assert_eq!(left_in(&journal).await, [1, 3]);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("Damaged") && errors[0].contains("spill-1.journal"));
    assert!(!errors[0].contains("secret"));
    journal.close().await;
    assert_eq!(folder.files(), ["spill-1.journal"]);

    finish(&folder.open()).await;
    assert_eq!(folder.files(), ["spill-1.damaged"]);
    assert!(fs::read(folder.file()).unwrap().starts_with(&bytes));
}

#[tokio::test]
async fn a_file_of_which_nothing_can_be_read_is_kept_and_no_other_overwritten() {
    let folder = Folder::new();
    folder.leave("spill-1.damaged", b"an earlier one");
    folder.leave("spill-1.journal", &[b'x'; 100]);
    let (journal, errors) = errors_of(|| folder.open());
    assert_eq!(errors.len(), 2, "{errors:?}");
    journal.close().await;
    assert_eq!(folder.files(), ["spill-1.damaged", "spill-1.damaged-2"]);
}

#[tokio::test]
async fn an_entry_that_is_damaged_while_the_journal_runs_stays_in_its_file() {
    let folder = Folder::new();
    let journal = folder.open();
    for n in 1..=2 {
        journal.append(&spilled(n, b"answer")).await.unwrap();
    }
    let mut bytes = fs::read(folder.file()).unwrap();
    bytes[100] ^= 1;
    fs::write(folder.file(), bytes).unwrap();
    assert_eq!(left_in(&journal).await, [2]);
    finish(&journal).await;
    assert_eq!(folder.files().len(), 1);
}

#[tokio::test]
async fn a_full_journal_refuses_and_has_room_again_when_it_is_drained() {
    let folder = Folder::new();
    let journal = folder.open_with(FileJournalSettings::default().max_bytes(568));
    let mut numbers = Vec::new();
    let refused = loop {
        match journal.append(&spilled(1, &[0; 100])).await {
            Ok(number) => numbers.push(number),
            Err(error) => break error,
        }
    };
    assert_eq!(numbers.len(), 2);
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    assert!(refused.to_string().contains("max_bytes is 568"));

    journal.append(&spilled(2, &[])).await.unwrap_err();
    journal.done(numbers[0]).await.unwrap();
    assert!(fs::metadata(folder.file()).unwrap().len() > 500);
    journal.done(numbers[1]).await.unwrap();
    journal.append(&spilled(3, &[0; 100])).await.unwrap();
    assert_eq!(left_in(&journal).await, [3]);
}

#[tokio::test]
async fn what_was_adopted_counts_as_full_too() {
    let folder = Folder::new();
    folder.leave("spill-1.journal", &file_of(&[spilled(1, &[0; 500])]).await);
    let journal = folder.open_with(FileJournalSettings::default().max_bytes(700));
    let refused = journal.append(&spilled(2, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    let left = journal.replay().await.unwrap();
    journal.done(left[0].0).await.unwrap();
    journal.append(&spilled(2, b"")).await.unwrap();
}

#[tokio::test]
async fn the_own_file_is_emptied_when_all_of_it_is_done_and_deleted_at_the_end() {
    let folder = Folder::new();
    let journal = folder.open();
    for _ in 0..2 {
        let number = journal.append(&spilled(1, b"answer")).await.unwrap();
        assert!(fs::metadata(folder.file()).unwrap().len() > 0);
        journal.done(number).await.unwrap();
        assert_eq!(fs::metadata(folder.file()).unwrap().len(), 0);
    }
    journal.close().await;
    assert_eq!(folder.files(), Vec::<String>::new());
}

#[tokio::test]
async fn a_journal_that_is_dropped_deletes_its_file_soon() {
    let folder = Folder::new();
    let runtime = Tokio::current();
    drop(folder.open());
    let deadline = runtime.boottime_now() + Duration::from_secs(10);
    while !folder.files().is_empty() {
        assert!(runtime.boottime_now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_closed_journal_refuses() {
    let folder = Folder::new();
    let journal = folder.open();
    journal.append(&spilled(1, b"")).await.unwrap();
    journal.close().await;
    journal.close().await;
    let refused = journal.append(&spilled(2, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    assert_eq!(left_in(&folder.open()).await, [1]);
}

#[tokio::test]
async fn only_this_user_can_read_it() {
    let folder = Folder::new();
    let directory = folder.0.join("deep").join("data");
    let settings = FileJournalSettings::default();
    let journal = FileJournal::open(&directory, Arc::new(Tokio::current()), settings).unwrap();
    journal.append(&spilled(1, b"")).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700);
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap();
    assert_eq!(mode(&file.path()), 0o600);
}

#[tokio::test]
async fn a_place_that_is_no_directory_is_unusable() {
    let folder = Folder::new();
    let path = folder.leave("file", b"");
    let settings = FileJournalSettings::default();
    let error = FileJournal::open(&path, Arc::new(Tokio::current()), settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("may this user write there"));
}

#[tokio::test]
async fn an_append_to_a_file_that_somebody_deleted_is_refused() {
    let folder = Folder::new();
    let journal = folder.open();
    fs::remove_file(folder.file()).unwrap();
    let refused = journal.append(&spilled(1, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
}

#[tokio::test]
async fn what_a_symbolic_link_points_to_is_not_touched() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let target = elsewhere.leave("precious", b"short");
    symlink(&target, folder.0.join("spill-1.journal")).unwrap();
    let (journal, errors) = errors_of(|| folder.open());
    journal.close().await;
    assert_eq!(errors.len(), 1);
    assert_eq!(folder.files(), ["spill-1.journal"]);
    assert_eq!(fs::read(target).unwrap(), b"short");
}

#[tokio::test]
async fn the_file_of_a_live_journal_is_not_adopted() {
    let folder = Folder::new();
    let first = folder.open();
    let second = folder.open();
    first.append(&spilled(1, b"")).await.unwrap();
    let third = folder.open();
    for other in [&second, &third] {
        assert_eq!(left_in(other).await, []);
        other.close().await;
    }
    assert_eq!(folder.files().len(), 1);
    assert_eq!(left_in(&first).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn openers_at_once_adopt_each_file_exactly_once() {
    let mut files = Vec::new();
    for n in 0..6 {
        files.push(file_of(&[spilled(n, b"answer")]).await);
    }
    for _ in 0..20 {
        let folder = Arc::new(Folder::new());
        for (n, bytes) in files.iter().enumerate() {
            folder.leave(&format!("spill-{n}.journal"), bytes);
        }
        let barrier = Arc::new(Barrier::new(3));
        let openers = (0..3).map(|_| {
            let (folder, barrier) = (Arc::clone(&folder), Arc::clone(&barrier));
            tokio::task::spawn_blocking(move || {
                barrier.wait();
                folder.open()
            })
        });
        let journals = try_join_all(openers).await.unwrap();
        assert_eq!(folder.files().len(), 6 + 3);
        let mut adopted = Vec::new();
        for journal in &journals {
            adopted.extend(left_in(journal).await);
            finish(journal).await;
        }
        adopted.sort_unstable();
        assert_eq!(adopted, [0, 1, 2, 3, 4, 5]);
        assert_eq!(folder.files(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn another_process_does_not_adopt_the_file_of_a_live_one() {
    let folder = Folder::new();
    let journal = folder.open();
    journal.append(&spilled(1, b"")).await.unwrap();
    let mut other = OtherProcess::start("look", &folder);
    assert_eq!(other.says(), "left []");
    assert!(other.child.wait().unwrap().success());
    journal.close().await;
    let mut next = OtherProcess::start("look", &folder);
    assert_eq!(next.says(), "left [1]");
    assert!(next.child.wait().unwrap().success());
}

#[tokio::test]
async fn what_a_killed_process_left_is_adopted() {
    let folder = Folder::new();
    let mut other = OtherProcess::start("hold", &folder);
    assert_eq!(other.says(), "holds");
    let early = folder.open();
    assert_eq!(left_in(&early).await, []);
    early.close().await;
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    assert_eq!(left_in(&folder.open()).await, [1, 2, 3]);
}

/// The limit on the size of a file stands for a full disk: a write stops in its middle.
#[tokio::test]
async fn a_full_disk_costs_only_the_append_that_met_it() {
    let folder = Folder::new();
    let mut other = OtherProcess::start("fill", &folder);
    let said = other.says();
    assert!(other.child.wait().unwrap().success(), "{said}");
    let (journal, errors) = errors_of(|| folder.open());
    let left = left_in(&journal).await;
    assert_eq!(said, format!("kept {left:?}"));
    assert!(left.contains(&1) && left.contains(&2));
    assert_eq!(errors, Vec::<String>::new());
}

/// This test's program once more, as a process of its own.
struct OtherProcess {
    child: Child,
    /// Open until the end: the test harness there still has something to say.
    output: BufReader<ChildStdout>,
}

const ROLE: &str = "HAPAX_JOURNAL_ROLE";
const WHERE: &str = "HAPAX_JOURNAL_WHERE";

impl OtherProcess {
    fn start(role: &str, folder: &Folder) -> Self {
        let (_, module) = module_path!().split_once("::").unwrap();
        let script = r#"[ "$HAPAX_JOURNAL_ROLE" != fill ] || { trap "" XFSZ; ulimit -f 8; }; exec "$@""#;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact"])
            .arg(format!("{module}::in_the_other_process"))
            .env(ROLE, role)
            .env(WHERE, &folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// What it says among what the test harness says.
    fn says(&mut self) -> String {
        let mut lines = self.output.by_ref().lines();
        lines
            .find_map(|line| {
                let line = line.unwrap();
                line.split_once("says: ").map(|(_, said)| said.to_owned())
            })
            .expect("it says something")
    }
}

/// No test by itself: what the other process of the tests above does.
#[tokio::test]
async fn in_the_other_process() {
    let (Ok(role), Ok(directory)) = (std::env::var(ROLE), std::env::var(WHERE)) else {
        return;
    };
    let settings = FileJournalSettings::default();
    let runtime = Arc::new(Tokio::current());
    let journal = FileJournal::open(Path::new(&directory), runtime, settings).unwrap();
    match role.as_str() {
        "look" => println!("says: left {:?}", left_in(&journal).await),
        "hold" => {
            for n in 1..=3 {
                journal.append(&spilled(n, b"answer")).await.unwrap();
            }
            println!("says: holds");
            // Until it is killed.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "fill" => println!("says: kept {:?}", fill(&journal, Path::new(&directory)).await),
        other => panic!("no such role: {other}"),
    }
}

/// Fills the disk with large answers, then with small ones, and says which were kept.
async fn fill(journal: &FileJournal, directory: &Path) -> Vec<u8> {
    let file = fs::read_dir(directory).unwrap().next().unwrap().unwrap();
    let mut kept = Vec::new();
    for (n, size) in [(1, 3000), (2, 0)] {
        let mut len = file.metadata().unwrap().len();
        let refused = loop {
            match journal.append(&spilled(n, &vec![n; size])).await {
                Ok(_) => kept.push(n),
                Err(error) => break error,
            }
            len = file.metadata().unwrap().len();
        };
        assert_eq!(refused.kind(), ErrorKind::NotApplied);
        assert!(refused.to_string().contains("disk full"));
        assert_eq!(file.metadata().unwrap().len(), len, "nothing of it is left");
    }
    kept
}

/// Runs this and gives the errors that were logged meanwhile.
fn errors_of<T>(body: impl FnOnce() -> T) -> (T, Vec<String>) {
    let errors = Errors::default();
    let output = tracing::subscriber::with_default(errors.clone(), body);
    let errors = std::mem::take(&mut *errors.0.lock().unwrap());
    (output, errors)
}

#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl Subscriber for Errors {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::ERROR {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
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

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
