use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Display, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hapax_core::{Error, ErrorKind, Result};

use crate::chaos::Mutant;

/// A file of SQLite that this process has open, with its log and the index of the log, by their devices and inodes.
/// SQLite does not notice that an open file is moved, removed or replaced, for instance by a backup that is restored
/// with `mv`: what it writes then is lost at the next start. The same holds for the log. Everything of Hapax that has a
/// file open checks it before each use, and again before it confirms a write.
///
/// `VACUUM` and a restore with SQLite's own backup keep the file, and with it the inode. SQLite removes and creates the
/// log itself, but not while a connection has it open.
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
    /// The path without links, at the opening. SQLite has the log beside it.
    place: PathBuf,
    opened: FileIdentity,
    was_empty: bool,
    log: Arc<Companion>,
    index: Arc<Companion>,
    is_damaged: Arc<AtomicBool>,
}

impl SqliteFile {
    /// The file that is at this path now. A symbolic link stands for its target. Call it right after the file was
    /// opened.
    ///
    /// # Errors
    /// `Unusable` if there is no file.
    pub fn at(path: &Path) -> Result<Self> {
        // The process may change its working directory.
        let path_now = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let examined = fs::canonicalize(&path_now).and_then(|place| Ok((fs::metadata(&place)?, place)));
        let (metadata, place) = examined.map_err(|source| {
            let message = format!("{} cannot be examined; check the rights on its directory", path.display());
            Error::new(ErrorKind::Unusable, message).caused_by(source)
        })?;
        Ok(Self {
            path: path_now,
            opened: FileIdentity::of(&metadata),
            was_empty: metadata.len() == 0,
            log: Arc::new(Companion::beside(&place, "-wal")),
            index: Arc::new(Companion::beside(&place, "-shm")),
            is_damaged: Arc::default(),
            place,
        })
    }

    /// Checks that the file is still at its path, and its log beside it.
    ///
    /// # Errors
    /// `NotApplied` if another file is there, none, or an emptied one, or if the log or its index was removed or
    /// replaced while this process has it open. A file that comes back is accepted again.
    pub fn check(&self) -> Result<()> {
        self.check_as(ErrorKind::NotApplied)
    }

    /// As [`check`](Self::check), with this kind of error.
    pub(super) fn check_as(&self, kind: ErrorKind) -> Result<()> {
        let Err(change) = self.compare() else { return Ok(()) };
        if Mutant::MovedFileUnnoticed.is_on() {
            return Ok(());
        }
        let message = change.message(self.path.display(), self.place());
        let error = Error::new(kind, message);
        Err(match change {
            FileChange::Missing(source) => error.caused_by(source),
            FileChange::Replaced
            | FileChange::Renamed
            | FileChange::Emptied
            | FileChange::LostLog(_)
            | FileChange::LostIndex => error,
        })
    }

    /// Compares what is on the disk with what was opened. Nothing is opened for that: SQLite's locks on a file end when
    /// the process closes any descriptor of it.
    fn compare(&self) -> Result<(), FileChange> {
        let found = fs::symlink_metadata(&self.place).map_err(FileChange::Missing)?;
        let leads_elsewhere =
            self.path != self.place && fs::canonicalize(&self.path).map_err(FileChange::Missing)? != self.place;
        if leads_elsewhere || FileIdentity::of(&found) != self.opened {
            let is_same = fs::metadata(&self.path).is_ok_and(|reached| FileIdentity::of(&reached) == self.opened);
            return Err(if is_same { FileChange::Renamed } else { FileChange::Replaced });
        }
        if found.len() == 0 && !self.was_empty {
            return Err(FileChange::Emptied);
        }
        if let Some(descriptor) = self.log.lost(self.opened.device) {
            return Err(FileChange::LostLog(descriptor));
        }
        self.index.lost(self.opened.device).map_or(Ok(()), |_| Err(FileChange::LostIndex))
    }

    /// Where the file is, without links.
    pub(super) fn place(&self) -> Display<'_> {
        self.place.display()
    }

    /// Notes that SQLite has found the file damaged.
    pub(super) fn set_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
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

/// What happened to an open file.
#[derive(Debug)]
enum FileChange {
    Missing(io::Error),
    Replaced,
    /// The path leads to the file by another name, where SQLite looks for another log.
    Renamed,
    Emptied,
    /// Where the process has the log open, if that is known.
    LostLog(PathBuf),
    LostIndex,
}

impl FileChange {
    /// Says what happened and what to do. The log of an old file must not stay beside a restored one: SQLite would
    /// write it into the restored file.
    fn message(&self, path: Display<'_>, place: Display<'_>) -> String {
        let meanwhile = "while this process has it open, so nothing is written any more";
        match self {
            Self::Missing(_) => format!(
                "{path} was moved or removed {meanwhile}; move it back, or stop the process, restore a backup, remove \
                 {place}-wal and {place}-shm of the old file, then start"
            ),
            Self::Replaced => format!(
                "{path} was replaced by another file {meanwhile}; stop the process, remove {place}-wal and \
                 {place}-shm of the old file, then start"
            ),
            Self::Renamed => format!("{path} got another name {meanwhile}; move the file back to {place}"),
            Self::Emptied => format!(
                "{path} was emptied {meanwhile}; stop the process, restore a backup, remove {place}-wal and \
                 {place}-shm of the old file, then start"
            ),
            Self::LostLog(descriptor) => format!(
                "{place}-wal was removed or replaced {meanwhile}; what is only in it is lost when the process ends: \
                 if no backup was restored, copy {} to {place}-wal; then restart the process",
                descriptor.display()
            ),
            Self::LostIndex => {
                format!("{place}-shm was removed or replaced {meanwhile}; restart every process that has the file open")
            }
        }
    }
}

/// A file beside the database that SQLite creates when it needs it, and removes when the last connection closes.
#[derive(Debug)]
struct Companion {
    path: PathBuf,
    /// Of the file that was seen there last; 0 if there was none.
    inode: AtomicU64,
}

impl Companion {
    fn beside(place: &Path, suffix: &str) -> Self {
        let mut path = place.as_os_str().to_owned();
        path.push(suffix);
        Self { path: path.into(), inode: AtomicU64::new(0) }
    }

    /// Returns the descriptor under which this process has the file open, if that file is not at its path any more. If
    /// this process does not have it open, SQLite itself removed it, and the file that is there now counts.
    fn lost(&self, device: u64) -> Option<PathBuf> {
        let found = fs::metadata(&self.path).map_or(0, |metadata| metadata.ino());
        let seen = self.inode.load(Ordering::Relaxed);
        if found == seen {
            return None;
        }
        let lost = if seen == 0 { None } else { descriptor(FileIdentity { device, inode: seen }) };
        if lost.is_none() {
            self.inode.store(found, Ordering::Relaxed);
        }
        lost
    }
}

/// Where other processes find a file that this process has open. If the system does not list its open files, it may
/// have it open.
fn descriptor(file: FileIdentity) -> Option<PathBuf> {
    let directory = format!("/proc/{}/fd", std::process::id());
    let listed = fs::read_dir(&directory).or_else(|_| fs::read_dir("/dev/fd"));
    let Ok(mut descriptors) = listed else { return Some(directory.into()) };
    descriptors.find_map(|entry| {
        let path = entry.ok()?.path();
        let metadata = fs::metadata(&path).ok()?;
        (FileIdentity::of(&metadata) == file).then_some(path)
    })
}

/// What a file keeps when its name changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}
