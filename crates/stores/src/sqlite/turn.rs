//! Writers of one file take turns. SQLite lets a connection poll for the lock of the file, so one that writes all the
//! time leaves the others hardly a free moment. A connection that waits for the lock of `FILE.turn` gets it as soon as
//! it is free.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::connection::create_private;

/// How many threads of this process may wait for a turn. A call that finds no room goes on without a turn.
const MAX_WAITING: usize = 64;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The turn of a writer, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _file: File,
}

impl Turn {
    /// Waits for the turn as long as the connection waits for a lock of SQLite. None after that time, and if there is
    /// no such file: then the lock of SQLite decides alone, which is as safe and less fair.
    pub(super) fn take(connection: &Connection) -> Option<Self> {
        let path = connection.path().filter(|path| !path.is_empty())?;
        let patience: i64 = connection.pragma_query_value(None, "busy_timeout", |row| row.get(0)).ok()?;
        let file = open(Path::new(path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => wait(file, Duration::from_millis(patience.unsigned_abs())),
            Err(_) => None,
        }
    }
}

/// Waits in a thread of its own, because the system has no limit for this wait. A thread that waited too long ends when
/// the turn is free.
fn wait(file: File, patience: Duration) -> Option<Turn> {
    // Several threads that come here at once may exceed the limit by their number.
    if patience.is_zero() || WAITING.load(Ordering::Relaxed) >= MAX_WAITING {
        return None;
    }
    WAITING.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel();
    let locked = move || {
        let result = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        WAITING.fetch_sub(1, Ordering::Relaxed);
        // Nobody may wait any more; then the file is closed, which frees the turn.
        let _ = sender.send(result.map(|()| Turn { _file: file }));
    };
    // `Builder` returns an error where `spawn` panics.
    if std::thread::Builder::new().name("hapax-sqlite-turn".into()).spawn(locked).is_err() {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    receiver.recv_timeout(patience).ok()?.ok()
}

/// Opens `FILE.turn`, or creates it so that only its owner can use it.
fn open(path: &Path) -> Option<File> {
    let mut name = OsString::from(path);
    name.push(".turn");
    let path = PathBuf::from(name);
    create_private(&path);
    File::open(path).ok()
}
