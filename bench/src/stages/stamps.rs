use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

/// Microseconds of the clock that all processes of the machine share.
pub(crate) fn microseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// When the worker got a message, and when its effect was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StampedTransaction {
    pub(crate) received: u64,
    pub(crate) committed: u64,
}

impl StampedTransaction {
    /// Writes the times of these payments down, in one write.
    pub(super) fn write(self, mut file: &File, numbers: &[u64]) -> anyhow::Result<()> {
        let Self { received, committed } = self;
        let lines: String = numbers.iter().map(|number| format!("{number} {received} {committed}\n")).collect();
        Ok(file.write_all(lines.as_bytes())?)
    }

    /// The times of all payments.
    pub(crate) fn read(path: &Path) -> anyhow::Result<HashMap<u64, Self>> {
        let read = |line: &str| {
            let mut numbers = line.split(' ').map(str::parse);
            let mut next = || anyhow::Ok(numbers.next().context("a line of stamps is short")??);
            anyhow::Ok((next()?, Self { received: next()?, committed: next()? }))
        };
        // The last line may still be written.
        let text = fs::read_to_string(path)?;
        text.rsplit_once('\n').map_or("", |(lines, _)| lines).lines().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_they_were_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stamped = StampedTransaction { received: 5, committed: 9 };
        stamped.write(file.as_file(), &[1, 2]).unwrap();
        assert_eq!(StampedTransaction::read(file.path()).unwrap(), HashMap::from([(1, stamped), (2, stamped)]));
    }
}
