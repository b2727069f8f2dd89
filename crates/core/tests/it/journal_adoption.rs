//! The files of a journal: locks, adoption from other processes, deletion, and full disks.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use futures_util::future::try_join_all;
use hapax_core::journal::{FileJournal, FileJournalSettings, ForeignJournal, StorePlace};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{ErrorKind, Journal};

use crate::journal_folder::{JournalFolder, collect_errors, encode_file, finish_and_close, place, spilled, undone_in};

#[tokio::test]
async fn adopted_files_count_against_max_bytes() {
    let folder = JournalFolder::new();
    folder.write_file("spill-1.journal", &encode_file(&[spilled(1, &[0; 500])]).await);
    // The adopted file has 705 bytes, and a new file with an empty answer has 205: too many together, but not alone.
    let journal = folder.open_with(FileJournalSettings::default().max_bytes(756));
    let refused = journal.append(&spilled(2, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    let undone = journal.replay().await.unwrap();
    journal.done(undone[0].0).await.unwrap();
    journal.append(&spilled(2, b"")).await.unwrap();
}

#[tokio::test]
async fn the_own_file_is_emptied_when_all_entries_are_done_and_deleted_on_close() {
    let folder = JournalFolder::new();
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
    let folder = JournalFolder::new();
    let runtime = Tokio::current();
    drop(folder.open());
    // The thread takes milliseconds; the bound only ends a test that would hang.
    let deadline = runtime.boottime_now() + Duration::from_secs(10);
    while !folder.files().is_empty() {
        assert!(runtime.boottime_now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_this_user_can_read_the_files() {
    let folder = JournalFolder::new();
    let directory = folder.0.join("deep").join("data");
    let settings = FileJournalSettings::default();
    let journal = FileJournal::with(&directory, &place(), Arc::new(Tokio::current()), settings).unwrap();
    journal.append(&spilled(1, b"")).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700);
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap();
    assert_eq!(mode(&file.path()), 0o600);
}

#[tokio::test]
async fn a_path_that_is_not_a_directory_is_unusable() {
    let folder = JournalFolder::new();
    let path = folder.write_file("file", b"");
    let settings = FileJournalSettings::default();
    let error = FileJournal::with(&path, &place(), Arc::new(Tokio::current()), settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("check that this user may write there"));
}

#[tokio::test]
async fn an_append_to_a_deleted_file_is_refused() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    fs::remove_file(folder.file()).unwrap();
    let refused = journal.append(&spilled(1, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
}

#[tokio::test]
async fn the_target_of_a_symbolic_link_is_not_touched() {
    let (folder, elsewhere) = (JournalFolder::new(), JournalFolder::new());
    let target = elsewhere.write_file("precious", b"short");
    symlink(&target, folder.0.join("spill-1.journal")).unwrap();
    let (journal, errors) = collect_errors(|| folder.open());
    journal.close().await;
    assert_eq!(errors.len(), 1);
    assert_eq!(folder.files(), ["spill-1.journal"]);
    assert_eq!(fs::read(target).unwrap(), b"short");
}

#[tokio::test]
async fn the_file_of_a_live_journal_is_not_adopted() {
    let folder = JournalFolder::new();
    let first = folder.open();
    let second = folder.open();
    first.append(&spilled(1, b"")).await.unwrap();
    let third = folder.open();
    for other in [&second, &third] {
        assert!(undone_in(other).await.is_empty());
        other.close().await;
    }
    assert_eq!(folder.files().len(), 1);
    assert_eq!(undone_in(&first).await, [1]);
}

/// Two gateways with two stores may use one directory.
#[tokio::test]
async fn answers_for_another_store_are_left_alone() {
    let folder = JournalFolder::new();
    let bytes = encode_file(&[spilled(1, b"answer"), spilled(2, b"answer")]).await;
    let path = folder.write_file("spill-1.journal", &bytes);
    let other = StorePlace::new("redis://a:6379/1");
    let (journal, errors) = collect_errors(|| folder.open_for(&other));
    assert_eq!((undone_in(&journal).await, journal.undone()), (vec![], 0));
    assert_eq!(journal.foreign(), [ForeignJournal { path: path.clone(), place: place(), answers: 2 }]);
    assert!(errors.len() == 1 && errors[0].contains("redis://a:6379/0"), "{errors:?}");
    // Its own store adopts the file, while the other journal is still open.
    let own = folder.open();
    assert_eq!((undone_in(&own).await, own.foreign()), (vec![1, 2], vec![]));
    finish_and_close(&own).await;
    assert_eq!(journal.foreign(), [], "the file is gone");
    journal.close().await;
    assert_eq!(folder.files(), Vec::<String>::new());
}

#[tokio::test]
async fn a_foreign_file_is_not_changed() {
    let bytes = encode_file(&[spilled(1, b"answer"), spilled(2, b"answer")]).await;
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for content in [&bytes, &damaged, &bytes[..bytes.len() - 3]] {
        let folder = JournalFolder::new();
        let path = folder.write_file("spill-1.journal", content);
        folder.open_for(&StorePlace::new("postgres://a:5432/shop")).close().await;
        assert_eq!((folder.files(), fs::read(path).unwrap()), (vec!["spill-1.journal".into()], content.to_vec()));
    }
}

/// The answers of a file whose place is damaged may belong to any store.
#[tokio::test]
async fn a_file_without_a_readable_place_is_adopted_only_by_the_unknown_place() {
    let mut bytes = encode_file(&[spilled(1, b"answer")]).await;
    // Behind the header of the file (32) and of the frame (32).
    bytes[70] ^= 1;
    let folder = JournalFolder::new();
    folder.write_file("spill-1.journal", &bytes);
    let journal = folder.open();
    assert_eq!(undone_in(&journal).await, Vec::<u8>::new());
    assert_eq!(journal.foreign()[0].place, StorePlace::unknown());
    journal.close().await;
    let unknown = folder.open_for(&StorePlace::unknown());
    assert_eq!(undone_in(&unknown).await, [1]);
    finish_and_close(&unknown).await;
    assert_eq!(folder.files(), ["spill-1.damaged"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_openers_adopt_each_file_exactly_once() {
    let mut files = Vec::new();
    for n in 0..6 {
        files.push(encode_file(&[spilled(n, b"answer")]).await);
    }
    for _ in 0..20 {
        let folder = Arc::new(JournalFolder::new());
        for (n, bytes) in files.iter().enumerate() {
            folder.write_file(&format!("spill-{n}.journal"), bytes);
        }
        // All three start at once, to race for the same files.
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
            adopted.extend(undone_in(journal).await);
            finish_and_close(journal).await;
        }
        adopted.sort_unstable();
        assert_eq!(adopted, [0, 1, 2, 3, 4, 5]);
        assert_eq!(folder.files(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn another_process_does_not_adopt_the_file_of_a_live_one() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    journal.append(&spilled(1, b"")).await.unwrap();
    let mut other = OtherProcess::start("look", &folder);
    assert_eq!(other.read_line(), "left []");
    assert!(other.child.wait().unwrap().success());
    journal.close().await;
    let mut next = OtherProcess::start("look", &folder);
    assert_eq!(next.read_line(), "left [1]");
    assert!(next.child.wait().unwrap().success());
}

#[tokio::test]
async fn the_file_of_a_killed_process_is_adopted() {
    let folder = JournalFolder::new();
    let mut other = OtherProcess::start("hold", &folder);
    assert_eq!(other.read_line(), "holds");
    // The other process still holds its lock.
    let early = folder.open();
    assert!(undone_in(&early).await.is_empty());
    early.close().await;
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    assert_eq!(undone_in(&folder.open()).await, [1, 2, 3]);
}

/// The limit on the size of a file stands for a full disk: a write stops half-way.
#[tokio::test]
async fn a_full_disk_fails_only_the_append_that_hits_it() {
    let folder = JournalFolder::new();
    let mut other = OtherProcess::start("fill", &folder);
    let output = other.read_line();
    assert!(other.child.wait().unwrap().success(), "{output}");
    let (journal, errors) = collect_errors(|| folder.open());
    let undone = undone_in(&journal).await;
    assert_eq!(output, format!("kept {undone:?}"));
    assert!(undone.contains(&1) && undone.contains(&2));
    assert_eq!(errors, Vec::<String>::new());
}

/// A second process of this test binary.
struct OtherProcess {
    child: Child,
    /// Kept open until the end: the test harness of the process still writes to it.
    output: BufReader<ChildStdout>,
}

const ROLE: &str = "HAPAX_JOURNAL_ROLE";
const DIRECTORY: &str = "HAPAX_JOURNAL_WHERE";

impl OtherProcess {
    fn start(role: &str, folder: &JournalFolder) -> Self {
        let (_, module) = module_path!().split_once("::").unwrap();
        // Eight blocks of 512 or 1,024 bytes, depending on the shell. Ignoring SIGXFSZ turns the signal into an error.
        let script = r#"[ "$HAPAX_JOURNAL_ROLE" != fill ] || { trap "" XFSZ; ulimit -f 8; }; exec "$@""#;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact"])
            .arg(format!("{module}::run_as_other_process"))
            .env(ROLE, role)
            .env(DIRECTORY, &folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next message of the process, without the output of its test harness.
    fn read_line(&mut self) -> String {
        let mut lines = self.output.by_ref().lines();
        lines
            .find_map(|line| {
                let line = line.unwrap();
                line.split_once("says: ").map(|(_, output)| output.to_owned())
            })
            .expect("the process prints a message")
    }
}

/// Not a test by itself: the code of the second process.
#[tokio::test]
async fn run_as_other_process() {
    let (Ok(role), Ok(directory)) = (std::env::var(ROLE), std::env::var(DIRECTORY)) else {
        return;
    };
    let settings = FileJournalSettings::default();
    let runtime = Arc::new(Tokio::current());
    let journal = FileJournal::with(Path::new(&directory), &place(), runtime, settings).unwrap();
    match role.as_str() {
        "look" => println!("says: left {:?}", undone_in(&journal).await),
        "hold" => {
            for n in 1..=3 {
                journal.append(&spilled(n, b"answer")).await.unwrap();
            }
            println!("says: holds");
            // Blocks until the process is killed.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "fill" => println!("says: kept {:?}", fill(&journal, Path::new(&directory)).await),
        other => panic!("no such role: {other}"),
    }
}

/// Fills the disk with large answers, then with small ones, and returns the entries that were stored.
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
        assert_eq!(file.metadata().unwrap().len(), len, "a failed append must leave no bytes");
    }
    kept
}
