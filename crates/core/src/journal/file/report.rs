//! Every event of a journal in files. No event contains a key or an answer.

use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind};
use crate::journal::{EntryNumber, ForeignJournal, StorePlace};

pub(super) fn adopted(path: &Path, left: usize) {
    tracing::info!(path = %path.display(), left, "adopted a journal file of an earlier process");
}

pub(super) fn foreign(file: &ForeignJournal, own: &StorePlace) {
    let (path, answers) = (file.path.display(), file.answers);
    tracing::error!(
        %path,
        answers,
        place = %file.place,
        %own,
        "a journal file has answers for another store and is left alone; adopt it if this store has replaced that one"
    );
}

pub(super) fn torn(path: &Path, bytes: u64) {
    tracing::warn!(path = %path.display(), bytes, "removed the start of an append that a crash had interrupted");
}

pub(super) fn damaged(path: &Path, at: u64, left: usize) {
    let message = format!("the journal file {} is damaged", path.display());
    let error = Error::new(ErrorKind::Damaged, message);
    tracing::error!(
        ?error,
        at,
        left,
        "a journal file is damaged and answers may be lost; check the disk. The readable answers are recorded"
    );
}

pub(super) fn entry_damaged(path: &Path, number: EntryNumber, error: &Error) {
    let path = path.display();
    tracing::error!(%path, number = number.0, ?error, "an answer in the journal is damaged; it stays in its file");
}

pub(super) fn set_aside(path: &Path, kept: &Path) {
    let (path, kept) = (path.display(), kept.display());
    tracing::error!(%path, %kept, "renamed a damaged journal file; its readable answers are recorded");
}

pub(super) fn written_by_later_release(path: &Path) {
    tracing::error!(
        path = %path.display(),
        "a later release wrote to this journal file; start that release once to record its answers"
    );
}

pub(super) fn not_adopted(path: &Path, error: &io::Error) {
    tracing::error!(
        path = %path.display(),
        %error,
        "cannot adopt a journal file, so its answers are not recorded; check that this user may read and write it"
    );
}

pub(super) fn not_ended(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "cannot remove a journal file whose answers are all recorded");
}

pub(super) fn not_unlocked(path: &Path, error: &io::Error) {
    let path = path.display();
    tracing::warn!(%path, %error, "cannot unlock a journal file; it stays locked until this process ends");
}
