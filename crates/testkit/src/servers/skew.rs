//! The wall clock of a server, which a test can step.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use crate::setup::ClockStep;

/// The file from which a server reads how far its wall clock is from that of the machine.
#[derive(Debug)]
pub(super) struct SkewFile {
    path: PathBuf,
    file: File,
    /// In microseconds.
    skew: Mutex<i64>,
}

impl SkewFile {
    /// In this folder. The clock is that of the machine.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join("skew");
        let file = File::create(&path)?;
        file.write_all_at(&0i64.to_ne_bytes(), 0)?;
        Ok(Self { path, file, skew: Mutex::default() })
    }

    /// The value of `HAPAX_SKEW`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How far the clock is ahead, in microseconds.
    pub(super) fn ahead(&self) -> i64 {
        *self.skew.lock()
    }

    /// Sets the clock to that of the machine.
    pub(super) fn reset(&self) -> io::Result<()> {
        let mut skew = self.skew.lock();
        *skew = 0;
        self.file.write_all_at(&skew.to_ne_bytes(), 0)
    }

    /// Steps the clock.
    ///
    /// # Errors
    /// If the step in microseconds exceeds 64 bits.
    pub(super) fn step(&self, step: ClockStep) -> io::Result<()> {
        let micros = |length: Duration| i64::try_from(length.as_micros()).map_err(io::Error::other);
        let step = match step {
            ClockStep::Forward(length) => micros(length)?,
            ClockStep::Back(length) => -micros(length)?,
        };
        let mut skew = self.skew.lock();
        // The server has mapped the file, so the write takes effect at its next reading of the clock.
        *skew = skew.checked_add(step).ok_or_else(|| io::Error::other("the clock step is too long"))?;
        self.file.write_all_at(&skew.to_ne_bytes(), 0)
    }
}
