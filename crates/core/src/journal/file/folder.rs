//! The directory of a journal: creates, locks and adopts its files.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::report;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// Creates the directory if it is missing, and syncs the parent of each new directory. Returns its absolute path,
/// because the process may change its working directory.
pub(super) fn prepare(directory: &Path) -> Result<PathBuf> {
    let prepared = || -> io::Result<PathBuf> {
        let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).count();
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let directory = fs::canonicalize(directory)?;
        // A new directory survives a power failure only when its parent is synced.
        for parent in directory.ancestors().skip(1).take(missing) {
            sync(parent)?;
        }
        Ok(directory)
    };
    prepared().map_err(|source| unusable(directory, source))
}

/// A file that this process has locked. Dropping the value unlocks it.
#[derive(Debug)]
pub(super) struct LockedFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// Waits until no other process looks through the files. A process locks each file that it looks at, also one of
/// another store; the own process of such a file would take it for one that is in use. None if the file system cannot
/// lock a directory: then the files are looked through all the same.
pub(super) fn take_turn(directory: &Path) -> Option<LockedFile> {
    let file = File::open(directory).ok()?;
    file.lock().ok()?;
    Some(LockedFile { file, path: directory.to_owned() })
}

/// How often `create` tries. Another process that starts may adopt a new file before this process has locked it.
const TRIES: usize = 100;

impl LockedFile {
    /// Creates and locks a new file.
    pub(super) fn create(directory: &Path, runtime: &dyn Runtime) -> Result<Self> {
        let create = || -> io::Result<Self> {
            for _ in 0..TRIES {
                let path = directory.join(name(runtime));
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
                // The umask may have removed a permission of the owner.
                file.set_permissions(Permissions::from_mode(0o600))?;
                if let Some(locked) = Self::lock(file, path)? {
                    // Without this a power failure could lose the file and the appends confirmed in it.
                    sync(directory)?;
                    return Ok(locked);
                }
            }
            Err(io::ErrorKind::WouldBlock.into())
        };
        create().map_err(|source| unusable(directory, source))
    }

    /// Locks and returns the files that earlier processes left.
    pub(super) fn adopt_all(directory: &Path, owner: u32) -> Result<Vec<Self>> {
        let list = || -> io::Result<Vec<Self>> {
            let mut adopted: Vec<Self> = Vec::new();
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if !is_journal(&entry.file_name()) {
                    continue;
                }
                // One file that cannot be adopted must not keep the answers in the others from the store.
                match Self::adopt(entry.path(), owner) {
                    Ok(file) => adopted.extend(file),
                    Err(error) => report::not_adopted(&entry.path(), &error),
                }
            }
            // `read_dir` has no fixed order. Sorted by path, the entries get the same numbers at each start.
            adopted.sort_by(|one, other| one.path.cmp(&other.path));
            Ok(adopted)
        };
        list().map_err(|source| unusable(directory, source))
    }

    fn adopt(path: PathBuf, owner: u32) -> io::Result<Option<Self>> {
        let Some(metadata) = if_exists(fs::symlink_metadata(&path))? else {
            return Ok(None);
        };
        // The target of a symbolic link may be another user's file, which must not be read or truncated.
        if !metadata.is_file() {
            let message = "not a regular file; remove it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let Some(file) = if_exists(OpenOptions::new().read(true).write(true).open(&path))? else {
            return Ok(None);
        };
        // Other users may be able to write to the directory, but only answers of this user may be recorded.
        if file.metadata()?.uid() != owner {
            let message = "the file belongs to another user; change its owner if you trust its answers";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Self::lock(file, path)
    }

    /// None if the file is locked already, or is no longer the file at its path.
    fn lock(file: File, path: PathBuf) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let locked = Self { file, path };
        Ok(locked.is_at_its_path()?.then_some(locked))
    }

    fn is_at_its_path(&self) -> io::Result<bool> {
        let opened = self.file.metadata()?;
        let at_path = if_exists(fs::symlink_metadata(&self.path))?;
        Ok(at_path.is_some_and(|at_path| opened.dev() == at_path.dev() && opened.ino() == at_path.ino()))
    }

    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    pub(super) fn owner(&self) -> Result<u32> {
        let metadata = self.file.metadata();
        metadata.map(|metadata| metadata.uid()).map_err(|source| unusable(&self.path, source))
    }

    /// Deletes the file. Needs no sync: if the file comes back after a power failure, completing its entries again does
    /// no harm.
    pub(super) fn delete(&self) -> io::Result<()> {
        if self.is_at_its_path()? {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }

    /// Renames the file to `….damaged`, so that no process adopts it.
    pub(super) fn set_aside(&self) -> io::Result<PathBuf> {
        // A file that was set aside earlier must not be overwritten.
        let free = |extension: String| {
            let path = self.path.with_extension(extension);
            (!path.exists()).then_some(path)
        };
        let path = free("damaged".into())
            .or_else(|| (2..).find_map(|n: u32| free(format!("damaged-{n}"))))
            .ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(&self.path, &path)?;
        Ok(path)
    }
}

/// Unlocks explicitly: closing is not enough, because a child process that was just forked shares the lock until its
/// `exec`.
impl Drop for LockedFile {
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            report::not_unlocked(&self.path, &error);
        }
    }
}

fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn name(runtime: &dyn Runtime) -> String {
    let mut bytes = [0; 8];
    runtime.fill_random(&mut bytes);
    format!("spill-{:016x}.journal", u64::from_be_bytes(bytes))
}

fn is_journal(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("spill-") && name.ends_with(".journal"))
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn unusable(path: &Path, source: io::Error) -> Error {
    let path = path.display();
    let message = format!(
        "the journal cannot use {path}; check that this user may write there, and that the file system has locks"
    );
    Error::new(ErrorKind::Unusable, message).caused_by(source)
}
