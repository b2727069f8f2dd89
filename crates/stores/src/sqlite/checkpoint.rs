//! Moves the write-ahead log into the file, on a thread and a connection of its own: no group waits for it.

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use tokio::sync::mpsc;

/// After how many steps of callers a checkpoint is worth its syncs: about as many pages as SQLite itself would let pass.
const WORTHWHILE: usize = 2_000;

/// From how many pages on writers are made to wait, so that the log begins anew: 64 MiB. Under writes that never pause a log that
/// is only copied grows for ever.
const TOO_LONG: i64 = 16_384;

/// Tells the thread how much was written.
#[derive(Debug)]
pub(super) struct Checkpoints {
    due: mpsc::Sender<()>,
    steps: usize,
}

impl Checkpoints {
    /// Starts the thread. It ends when the writer is gone.
    pub(super) fn start(connection: Connection, runtime: &dyn Runtime) -> Result<Self> {
        let (due, mut told) = mpsc::channel(1);
        let body = move || {
            while told.blocking_recv().is_some() {
                // What fails now is tried again with the next: the log only grows meanwhile.
                let _ = checkpoint(&connection);
            }
        };
        runtime.blocking("hapax-sqlite-checkpoint", Box::new(body)).map_err(|source| {
            Error::new(ErrorKind::Unusable, "the system has no thread left for SQLite's checkpoints").caused_by(source)
        })?;
        Ok(Self { due, steps: 0 })
    }

    /// So many steps were committed.
    pub(super) fn committed(&mut self, steps: usize) {
        self.steps += steps;
        // While one runs and one is due, a further one would add nothing.
        if self.steps >= WORTHWHILE && self.due.try_send(()).is_ok() {
            self.steps = 0;
        }
    }
}

fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    if pages_after(connection, "pragma wal_checkpoint(passive)")? >= TOO_LONG {
        pages_after(connection, "pragma wal_checkpoint(restart)")?;
    }
    Ok(())
}

/// The length of the log, in pages.
fn pages_after(connection: &Connection, checkpoint: &str) -> rusqlite::Result<i64> {
    connection.query_row(checkpoint, [], |row| row.get(1))
}
