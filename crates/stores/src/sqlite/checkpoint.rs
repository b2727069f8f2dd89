//! Copies the write-ahead log into the file, on its own thread and connection. Writers wait only for a checkpoint that
//! restarts a long log.

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::file_thread::FileConnection;

/// After how many steps a checkpoint runs: they write about as many pages as SQLite's own checkpoint interval.
const STEPS_BETWEEN_CHECKPOINTS: usize = 2_000;

/// From this size on (64 MiB), a checkpoint makes writers wait so that the log restarts from its beginning. A passive
/// checkpoint only copies the log, so under constant writes the log would grow without limit.
const RESTART_AT_PAGES: i64 = 16_384;

/// Counts steps and wakes the checkpoint thread.
#[derive(Debug)]
pub(super) struct Checkpoints {
    due: mpsc::Sender<()>,
    steps: usize,
}

impl Checkpoints {
    /// Starts the thread. It ends when this value is dropped.
    pub(super) fn start(opened: FileConnection, runtime: &dyn Runtime) -> Result<Self> {
        let (due, mut wakeups) = mpsc::channel(1);
        let body = move || {
            while wakeups.blocking_recv().is_some() {
                // A failed checkpoint only lets the log grow; the next one tries again.
                let _ = checkpoint(&opened.connection);
            }
            opened.close();
        };
        runtime.blocking("hapax-sqlite-checkpoint", Box::new(body)).map_err(|source| {
            Error::new(ErrorKind::Unusable, "the system cannot start a thread for SQLite's checkpoints")
                .caused_by(source)
        })?;
        Ok(Self { due, steps: 0 })
    }

    /// Counts committed steps, and wakes the thread once there are enough of them.
    pub(super) fn count(&mut self, steps: usize) {
        self.steps += steps;
        // If the channel is full, a checkpoint is already due and will cover these steps as well.
        if self.steps >= STEPS_BETWEEN_CHECKPOINTS && self.due.try_send(()).is_ok() {
            self.steps = 0;
        }
    }
}

fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    if pages_after(connection, "pragma wal_checkpoint(passive)")? >= RESTART_AT_PAGES {
        pages_after(connection, "pragma wal_checkpoint(restart)")?;
    }
    Ok(())
}

/// Runs a checkpoint and returns the length of the log, in pages.
fn pages_after(connection: &Connection, checkpoint: &str) -> rusqlite::Result<i64> {
    connection.query_row(checkpoint, [], |row| row.get(1))
}
