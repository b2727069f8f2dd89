//! Reads settings from flags, environment variables and the file, merges them, and prints them for `--check`.

pub(super) mod file;
pub(super) mod flags;
mod guess;
pub(super) mod origin;
pub(super) mod parse;
pub(super) mod setting;
pub(super) mod show;
pub(super) mod values;
