use std::fmt;

/// A file that a system has open, and that must stay the one at its path.
pub trait WatchedFile: fmt::Debug + Send + Sync {
    /// Looks whether the file is still at its path.
    ///
    /// # Errors
    /// If it was moved, removed or replaced.
    fn check(&self) -> hapax::Result<()>;
}
