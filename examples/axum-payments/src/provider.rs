//! A stand-in for a payment provider. Each charge is an effect that must not happen twice.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hapax::OperationId;

/// A provider that is open or closed, with a list of its charges.
#[derive(Debug, Default)]
pub(crate) struct Provider {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    closed: bool,
    charges: Vec<(OperationId, u64)>,
}

/// The error of a closed provider, which charged nothing.
#[derive(Debug)]
pub(crate) struct Closed;

impl Provider {
    /// Charges this many cents. It does not recognize copies, so a copy that passed the layer would be charged again.
    pub(crate) fn charge(&self, operation: OperationId, cents: u64) -> Result<String, Closed> {
        let mut books = self.books();
        if books.closed {
            return Err(Closed);
        }
        books.charges.push((operation, cents));
        Ok(format!("charged {cents} cents for {operation}\n"))
    }

    /// All charges, one per line.
    pub(crate) fn charges(&self) -> String {
        let mut text = String::new();
        for (operation, cents) in &self.books().charges {
            writeln!(text, "{operation} {cents}").expect("writing to a string succeeds");
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
