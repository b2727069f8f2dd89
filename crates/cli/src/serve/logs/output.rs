//! Where the log goes: standard error, or a file that is opened again after a SIGHUP.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use hapax::telemetry::AUDIT;
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::files::{Links, open_to_append};
use crate::serve::logs::ACCESS;
use crate::serve::logs::queue::{LineRank, LogQueue, LostLines};

/// The lines of this process.
static QUEUE: LogQueue = LogQueue::new();

thread_local! {
    /// Whether this thread is logging the last lines.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// Logs the last lines, and waits at most for `limit` until the log is written. Later lines of this thread, and those
/// of other threads from now on, are dropped. Returns whether the log is written. Does nothing if the log has ended.
pub(crate) fn end_with(limit: Duration, last_lines: impl FnOnce()) -> bool {
    if QUEUE.end() {
        IS_LAST.set(true);
        last_lines();
        IS_LAST.set(false);
        return QUEUE.wait_until_written(limit);
    }
    true
}

/// Returns the number of lines that were lost since the start.
pub(crate) fn lost_lines() -> u64 {
    QUEUE.lost().all
}

/// Returns the number of lines that were lost since the start, if it has grown.
pub(super) fn newly_lost() -> Option<LostLines> {
    QUEUE.newly_lost()
}

/// The destination of every log line.
#[derive(Debug)]
pub(super) struct LogOutput {
    /// None for standard error.
    path: Option<PathBuf>,
}

impl LogOutput {
    /// Opens the file, and starts the thread that writes.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, anyhow::Error> {
        let file = match path {
            Some(path) => open(path)?,
            // A copy, because a blocked write must not lock standard error for panics and the error of the command.
            None => io::stderr().as_fd().try_clone_to_owned().context("cannot open standard error")?.into(),
        };
        let started = thread::Builder::new().name("log".into()).spawn(move || QUEUE.write_to(file));
        started.context("the system has no thread left")?;
        Ok(Self { path: path.map(Path::to_owned) })
    }

    /// Opens the file again: the old one may have been renamed. On an error, the log goes on in the old file.
    pub(super) fn reopen(&self) -> Result<(), anyhow::Error> {
        if let Some(path) = &self.path {
            QUEUE.replace_file(open(path)?);
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, anyhow::Error> {
    open_to_append(path, Links::Followed).with_context(|| format!("cannot open the log file {}", path.display()))
}

/// Queues each line with its rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueWriter;

impl<'a> MakeWriter<'a> for QueueWriter {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(LineRank::Ordinary)
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> LineWriter {
        LineWriter(rank_of(line.target()))
    }
}

fn rank_of(target: &str) -> LineRank {
    match target {
        _ if IS_LAST.get() => LineRank::Last,
        AUDIT => LineRank::Audit,
        _ => LineRank::Ordinary,
    }
}

/// Queues a line of the access log without control characters.
pub(super) fn push_access_line(line: &[u8]) {
    QUEUE.push(line, rank_of(ACCESS));
}

/// Queues lines without control characters.
#[derive(Debug)]
pub(super) struct LineWriter(LineRank);

impl Write for LineWriter {
    /// The formatter hands over each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let escaped = escape_controls(text.trim_end_matches('\n'));
        QUEUE.push(escaped.as_bytes(), self.0);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a terminal shows something else than the character: a control character, also above U+007F, or one that
/// changes the direction of the text.
fn is_hidden(character: char) -> bool {
    let turns = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || turns
}

/// Escapes control characters, also those above U+007F, and those that change the direction of the text. They could
/// forge lines and control the terminal. The escapes are those of JSON, so that a line in JSON keeps its meaning.
pub(crate) fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            control if is_hidden(control) => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", u32::from(control));
            }
            other => escaped.push(other),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, escaped) in [
            ("plain — ö", "plain — ö"),
            ("a\u{1b}[31mb", "a\\u001b[31mb"),
            ("a\nb\tc\u{7f}", "a\\nb\\u0009c\\u007f"),
            ("\u{9b}31m", "\\u009b31m"),
            ("paid\u{202e}exe.", "paid\\u202eexe."),
        ] {
            assert_eq!(escape_controls(text), escaped);
        }
    }
}
