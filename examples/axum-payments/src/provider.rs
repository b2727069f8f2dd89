//! Stands for a payment provider: each charge is an effect that must not happen twice.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hapax::OperationId;

/// What the provider has charged, and whether it is open.
#[derive(Debug, Default)]
pub(crate) struct Provider {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    closed: bool,
    charges: Vec<(OperationId, u64)>,
}

/// The provider is closed, and nothing was charged.
#[derive(Debug)]
pub(crate) struct Closed;

impl Provider {
    /// Charges so many cents. It would charge a copy again: it leaves that to the layer, to show that none comes.
    pub(crate) fn charge(&self, operation: OperationId, cents: u64) -> Result<String, Closed> {
        let mut books = self.books();
        if books.closed {
            return Err(Closed);
        }
        books.charges.push((operation, cents));
        Ok(format!("charged {cents} cents for {operation}\n"))
    }

    /// All charges, one a line.
    pub(crate) fn charges(&self) -> String {
        let mut text = String::new();
        for (operation, cents) in &self.books().charges {
            writeln!(text, "{operation} {cents}").expect("a string takes everything");
        }
        text
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.books().closed = !open;
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
