//! Where the log goes: standard error, or a file that is opened again after a SIGHUP.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use parking_lot::Mutex;

/// Whether only the last line may still be written.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is writing the last line.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// Logs the last line. Later lines of this thread, and those of other threads from now on, are dropped.
pub(crate) fn end_with(last_line: impl FnOnce()) {
    HAS_ENDED.store(true, Ordering::Release);
    IS_LAST.set(true);
    last_line();
    IS_LAST.set(false);
}

fn write_unless_ended(output: &mut impl Write, line: &[u8]) -> io::Result<()> {
    if HAS_ENDED.load(Ordering::Acquire) && !IS_LAST.get() {
        return Ok(());
    }
    output.write_all(line)
}

/// The destination of every log line.
#[derive(Debug)]
pub(super) enum LogOutput {
    StandardError,
    File { path: PathBuf, file: Mutex<File> },
}

impl LogOutput {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, anyhow::Error> {
        match path {
            None => Ok(Self::StandardError),
            Some(path) => Ok(Self::File { path: path.into(), file: Mutex::new(open(path)?) }),
        }
    }

    /// Opens the file again: the old one may have been renamed. On an error, the log goes on in the old file.
    pub(super) fn reopen(&self) -> Result<(), anyhow::Error> {
        if let Self::File { path, file } = self {
            let opened = open(path)?;
            *file.lock() = opened;
        }
        Ok(())
    }

    fn write_line(&self, line: &[u8]) -> io::Result<()> {
        // Both check under their lock, so that no line of another thread follows the last one.
        match self {
            Self::StandardError => write_unless_ended(&mut io::stderr().lock(), line),
            Self::File { file, .. } => write_unless_ended(&mut *file.lock(), line),
        }
    }
}

fn open(path: &Path) -> Result<File, anyhow::Error> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot open the log file {}", path.display()))
}

/// Writes lines without control characters.
impl Write for &LogOutput {
    /// The formatter hands over each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let escaped = escape_controls(text.trim_end_matches('\n'));
        self.write_line(format!("{escaped}\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes control characters, also those above U+007F. They could forge lines and control the terminal. The escapes
/// are those of JSON, so that a line in JSON keeps its meaning.
pub(crate) fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            control if control.is_control() => {
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
        ] {
            assert_eq!(escape_controls(text), escaped);
        }
    }
}
