//! Journals: an entry that was appended and is not done survives a restart.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;

use futures_util::future::{join_all, try_join_all};
use hapax_core::journal::{EntryNumber, FileJournalSettings, MemoryJournal, Spilled};
use hapax_core::{ErrorKind, Journal};

use crate::journal_folder::{JournalFolder, collect_errors, encode_file, finish_and_close, name, spilled, undone_in};

#[tokio::test]
async fn answers_of_every_size_are_replayed_unchanged() {
    let folder = JournalFolder::new();
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
        (complete.age, complete.ended),
    )
}

#[tokio::test]
async fn done_entries_are_not_replayed() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    let mut numbers = Vec::new();
    for n in 1..=4 {
        numbers.push(journal.append(&spilled(n, b"answer")).await.unwrap());
    }
    journal.done(numbers[1]).await.unwrap();
    journal.done(numbers[3]).await.unwrap();
    assert_eq!(undone_in(&journal).await, [1, 3]);
    journal.close().await;
    assert_eq!(journal.undone(), 2);

    let next = folder.open();
    assert_eq!(next.undone(), 2, "counted when the journal is opened");
    let undone = next.replay().await.unwrap();
    next.done(undone[0].0).await.unwrap();
    next.close().await;
    assert_eq!(undone_in(&folder.open()).await, [3]);
}

#[tokio::test]
async fn marking_an_entry_twice_or_an_unknown_entry_succeeds() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    let number = journal.append(&spilled(1, b"")).await.unwrap();
    for number in [number, number, EntryNumber(12345)] {
        journal.done(number).await.unwrap();
    }
}

#[tokio::test]
async fn entries_of_all_files_are_replayed_oldest_first() {
    let folder = JournalFolder::new();
    let entry = |n| spilled(n, b"answer");
    for (file, ages) in [("b", [4, 1]), ("a", [5, 2])] {
        let bytes = encode_file(&ages.map(entry)).await;
        folder.write_file(&format!("spill-{file}.journal"), &bytes);
    }
    let journal = folder.open();
    journal.append(&entry(3)).await.unwrap();
    assert_eq!(undone_in(&journal).await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_memory_journal_replays_undone_entries_oldest_first() {
    let journal = MemoryJournal::new();
    journal.append(&spilled(3, b"")).await.unwrap();
    let second = journal.append(&spilled(2, b"")).await.unwrap();
    journal.append(&spilled(1, b"")).await.unwrap();
    journal.done(second).await.unwrap();
    let undone = journal.replay().await.unwrap();
    let names: Vec<u8> = undone.iter().map(|(_, spilled)| name(spilled)).collect();
    assert_eq!(names, [1, 3]);
}

#[tokio::test]
async fn concurrent_appends_survive_a_crash() {
    let folder = JournalFolder::new();
    let journal = &folder.open();
    let appends = (0..50).map(|n| async move { journal.append(&spilled(n, &[n; 1000])).await.unwrap() });
    let numbers: BTreeSet<EntryNumber> = join_all(appends).await.into_iter().collect();
    assert_eq!(numbers.len(), 50);

    let after = JournalFolder::new();
    // A copy of the open file is what a crash would leave.
    after.write_file("spill-1.journal", &fs::read(folder.file()).unwrap());
    let undone = undone_in(&after.open()).await;
    assert_eq!(undone, (0..50).collect::<Vec<u8>>());
}

#[tokio::test]
async fn an_append_cut_short_at_any_byte_loses_only_itself() {
    let entries = [spilled(1, b"one"), spilled(2, b"two"), spilled(3, b"three")];
    let before = encode_file(&entries[..2]).await.len();
    let whole = encode_file(&entries).await;
    for len in before..whole.len() {
        let folder = JournalFolder::new();
        let path = folder.write_file("spill-1.journal", &whole[..len]);
        let (journal, errors) = collect_errors(|| folder.open());
        assert_eq!(undone_in(&journal).await, [1, 2], "cut at {len}");
        assert_eq!(fs::metadata(&path).unwrap().len(), before as u64);
        assert_eq!(errors, Vec::<String>::new());
        finish_and_close(&journal).await;
        assert_eq!(folder.files(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_read_and_kept() {
    let entries = [1, 2, 3].map(|n| spilled(n, b"a secret"));
    let mut bytes = encode_file(&entries).await;
    // The three entries have one length. The header and the place (88) come before them.
    let middle = 88 + (bytes.len() - 88) / 2;
    bytes[middle] ^= 1;
    let folder = JournalFolder::new();
    folder.write_file("spill-1.journal", &bytes);

    let (journal, errors) = collect_errors(|| folder.open());
    assert_eq!(undone_in(&journal).await, [1, 3]);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("Damaged") && errors[0].contains("spill-1.journal"));
    assert!(!errors[0].contains("secret"));
    journal.close().await;
    assert_eq!(folder.files(), ["spill-1.journal"]);

    finish_and_close(&folder.open()).await;
    assert_eq!(folder.files(), ["spill-1.damaged"]);
    assert!(fs::read(folder.file()).unwrap().starts_with(&bytes));
}

#[tokio::test]
async fn an_unreadable_file_is_kept_without_overwriting_another() {
    let folder = JournalFolder::new();
    folder.write_file("spill-1.damaged", b"an earlier one");
    folder.write_file("spill-1.journal", &[b'x'; 100]);
    let (journal, errors) = collect_errors(|| folder.open());
    assert_eq!(errors.len(), 2, "{errors:?}");
    journal.close().await;
    assert_eq!(folder.files(), ["spill-1.damaged", "spill-1.damaged-2"]);
}

#[tokio::test]
async fn an_entry_that_is_damaged_while_the_journal_runs_stays_in_its_file() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    for n in 1..=2 {
        journal.append(&spilled(n, b"answer")).await.unwrap();
    }
    let mut bytes = fs::read(folder.file()).unwrap();
    // Byte 150 is in the fields of the first entry, behind the header (32), the place (56) and the frame's header (32).
    bytes[150] ^= 1;
    fs::write(folder.file(), bytes).unwrap();
    assert_eq!(undone_in(&journal).await, [2]);
    finish_and_close(&journal).await;
    assert_eq!(folder.files().len(), 1);
}

#[tokio::test]
async fn a_full_journal_refuses_until_its_entries_are_done() {
    let folder = JournalFolder::new();
    // A header (32), the place (56) and two entries (217 each) are 522 bytes. Even an entry without an answer (117) is
    // too long then.
    let journal = folder.open_with(FileJournalSettings::default().max_bytes(624));
    let mut numbers = Vec::new();
    let refused = loop {
        match journal.append(&spilled(1, &[0; 100])).await {
            Ok(number) => numbers.push(number),
            Err(error) => break error,
        }
    };
    assert_eq!(numbers.len(), 2);
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    assert!(refused.to_string().contains("max_bytes is 624"));

    journal.append(&spilled(2, &[])).await.unwrap_err();
    journal.done(numbers[0]).await.unwrap();
    // Not emptied, but longer by the frame that marks the entry: the other entry is not done.
    assert!(fs::metadata(folder.file()).unwrap().len() > 500);
    journal.done(numbers[1]).await.unwrap();
    journal.append(&spilled(3, &[0; 100])).await.unwrap();
    assert_eq!(undone_in(&journal).await, [3]);
}

#[tokio::test]
async fn a_closed_journal_refuses() {
    let folder = JournalFolder::new();
    let journal = folder.open();
    journal.append(&spilled(1, b"")).await.unwrap();
    journal.close().await;
    journal.close().await;
    let refused = journal.append(&spilled(2, b"")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    assert_eq!(undone_in(&folder.open()).await, [1]);
}
