use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hapax_core::{Error, ErrorKind, Result};

use crate::chaos;

/// A file of SQLite that this process has open, by its device and inode. SQLite does not notice that an open file is
/// moved, removed or replaced, for instance by a backup that is restored with `mv`: what it writes then is lost at the
/// next start. Everything of Hapax that has a file open checks it before each use, and again before it confirms a
/// write.
///
/// `VACUUM` and a restore with SQLite's own backup keep the file, and with it the inode.
///
/// ```
/// use hapax::stores::SqliteFile;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("shop.db");
/// # std::fs::write(&path, b"")?;
/// let file = SqliteFile::at(&path)?;
/// file.check()?;
/// std::fs::rename(&path, directory.path().join("old.db"))?;
/// assert!(file.check().is_err());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SqliteFile {
    path: PathBuf,
    /// Device and inode.
    opened: (u64, u64),
}

impl SqliteFile {
    /// The file that is at this path now. A symbolic link stands for its target. Call it right after the file was
    /// opened.
    ///
    /// # Errors
    /// `Unusable` if there is no file.
    pub fn at(path: &Path) -> Result<Self> {
        // The process may change its working directory.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let opened = identity(&absolute).map_err(|source| {
            let message = format!("{} cannot be examined; check the rights on its directory", path.display());
            Error::new(ErrorKind::Unusable, message).caused_by(source)
        })?;
        Ok(Self { path: absolute, opened })
    }

    /// Checks that the file is still at its path.
    ///
    /// # Errors
    /// `NotApplied` if another file is there, or none. A file that comes back is accepted again.
    pub fn check(&self) -> Result<()> {
        self.check_as(ErrorKind::NotApplied)
    }

    /// As [`check`](Self::check), with this kind of error.
    pub(super) fn check_as(&self, kind: ErrorKind) -> Result<()> {
        let path = self.path.display();
        let error = |what: &str| {
            let message = format!(
                "{path} {what} while this process has it open, so nothing is written any more; restart the process"
            );
            Error::new(kind, message)
        };
        match identity(&self.path) {
            Ok(found) if found == self.opened => Ok(()),
            _ if chaos::on("moved_file_unnoticed") => Ok(()),
            Ok(_) => Err(error("was replaced by another file")),
            Err(source) => Err(error("was moved or removed").caused_by(source)),
        }
    }

    /// Runs work on the file. It does not start if the file has gone, and if the file goes meanwhile, nobody knows
    /// whether the file that is kept has the work.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let done = work()?;
        self.check_as(ErrorKind::Unknown)?;
        Ok(done)
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
