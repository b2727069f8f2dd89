//! The directory of a journal: who may have which file.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::report;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// Makes the directory if it is missing, safe from a power failure, and gives its full path: the process may change its own.
pub(super) fn prepare(directory: &Path) -> Result<PathBuf> {
    let prepared = || -> io::Result<PathBuf> {
        let made = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).count();
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let directory = fs::canonicalize(directory)?;
        for parent in directory.ancestors().skip(1).take(made) {
            sync(parent)?;
        }
        Ok(directory)
    };
    prepared().map_err(|source| unusable(directory, source))
}

/// A file that no other process has: its lock ends with this value.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// How often a new file is made before giving up: whoever starts at the same time may adopt it before it is locked.
const TRIES: usize = 100;

impl Locked {
    /// Makes a new file.
    pub(super) fn create(directory: &Path, runtime: &dyn Runtime) -> Result<Self> {
        let create = || -> io::Result<Self> {
            for _ in 0..TRIES {
                let path = directory.join(name(runtime));
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
                if let Some(locked) = Self::lock(file, path)? {
                    sync(directory)?;
                    return Ok(locked);
                }
            }
            Err(io::ErrorKind::WouldBlock.into())
        };
        create().map_err(|source| unusable(directory, source))
    }

    /// The files that earlier processes left.
    pub(super) fn left_in(directory: &Path, owner: u32) -> Result<Vec<Self>> {
        let list = || -> io::Result<Vec<Self>> {
            let mut left: Vec<Self> = Vec::new();
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if !is_journal(&entry.file_name()) {
                    continue;
                }
                match Self::adopt(entry.path(), owner) {
                    Ok(adopted) => left.extend(adopted),
                    Err(error) => report::not_adopted(&entry.path(), &error),
                }
            }
            // Directories are listed in any order; numbers are given in the same one every time.
            left.sort_by(|one, other| one.path.cmp(&other.path));
            Ok(left)
        };
        list().map_err(|source| unusable(directory, source))
    }

    fn adopt(path: PathBuf, owner: u32) -> io::Result<Option<Self>> {
        let Some(there) = if_there(fs::symlink_metadata(&path))? else {
            return Ok(None);
        };
        // Whatever a symbolic link points to is not ours to cut or rename.
        if !there.is_file() {
            let message = "it is no regular file: remove it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let Some(file) = if_there(OpenOptions::new().read(true).write(true).open(&path))? else {
            return Ok(None);
        };
        // Where others may write to the directory, nobody's answers but this user's own are recorded.
        if file.metadata()?.uid() != owner {
            let message = "it belongs to another user: give it to this one if its answers are true";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Self::lock(file, path)
    }

    /// Nothing if another process has it, or had it and deleted it.
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
        let here = self.file.metadata()?;
        let there = if_there(fs::symlink_metadata(&self.path))?;
        Ok(there.is_some_and(|there| here.dev() == there.dev() && here.ino() == there.ino()))
    }

    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    pub(super) fn owner(&self) -> Result<u32> {
        let metadata = self.file.metadata();
        metadata.map(|metadata| metadata.uid()).map_err(|source| unusable(&self.path, source))
    }

    /// Deletes the file. Not made safe from a power failure: a file that comes back holds what is done again without harm.
    pub(super) fn delete(&self) -> io::Result<()> {
        if self.is_at_its_path()? {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }

    /// Keeps the file under a name by which nobody adopts it.
    pub(super) fn set_aside(&self) -> io::Result<PathBuf> {
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

/// A child process that was forked a moment ago shares the lock until it has begun its own program: closing would not end it.
impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            report::not_unlocked(&self.path, &error);
        }
    }
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
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
    let message =
        format!("the journal cannot use {path}: may this user write there, and does its file system have locks?");
    Error::new(ErrorKind::Unusable, message).caused_by(source)
}
