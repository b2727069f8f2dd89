//! Every event of a journal of files. Nothing of a key or an answer is in them.

use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind};
use crate::journal::Number;

pub(super) fn adopted(path: &Path, left: usize) {
    tracing::info!(path = %path.display(), left, "a file of the journal is adopted");
}

pub(super) fn torn(path: &Path, bytes: u64) {
    tracing::warn!(path = %path.display(), bytes, "a crash cut an append to the journal short; what it left is cut off");
}

pub(super) fn damaged(path: &Path, at: u64, left: usize) {
    let message = format!("the journal's file {} is damaged", path.display());
    let error = Error::new(ErrorKind::Damaged, message);
    tracing::error!(?error, at, left, "answers may be lost: look at the disk. Those that can be read are tried");
}

pub(super) fn entry_damaged(path: &Path, number: Number, error: &Error) {
    tracing::error!(path = %path.display(), number = number.0, ?error, "an answer in the journal cannot be read any more; it stays in its file");
}

pub(super) fn set_aside(path: &Path, kept: &Path) {
    tracing::error!(path = %path.display(), kept = %kept.display(), "a damaged file of the journal has another name now; what could be read of it is done");
}

pub(super) fn of_a_later_release(path: &Path) {
    tracing::error!(path = %path.display(), "a later release wrote to this file of the journal: start that one once to have its answers recorded");
}

pub(super) fn not_adopted(path: &Path, error: &io::Error) {
    tracing::error!(path = %path.display(), %error, "a file of the journal cannot be adopted; the answers in it wait: may this user read and write it?");
}

pub(super) fn not_ended(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "a file of the journal stays although all of it is done");
}

pub(super) fn not_unlocked(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "a file of the journal stays locked until this process ends");
}
