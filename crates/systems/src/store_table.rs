use std::fmt;

use async_trait::async_trait;
use hapax::store::Finding;

/// The table that a store needs in a system without SQL.
#[async_trait]
pub trait StoreTable: fmt::Debug + Send + Sync {
    /// Whether there is one.
    ///
    /// # Errors
    /// As the system says.
    async fn exists(&self) -> hapax::Result<bool>;

    /// Looks for faults of a table that is there.
    ///
    /// # Errors
    /// As the system says.
    async fn check(&self) -> hapax::Result<Vec<Finding>>;

    /// Makes the table if it is missing, and corrects it as far as that is possible. Returns whether it changed
    /// anything.
    ///
    /// # Errors
    /// As the system says.
    async fn create(&self) -> hapax::Result<bool>;

    /// The commands of a shell that do what `create` would do now. Empty if there is nothing to do.
    ///
    /// # Errors
    /// As the system says.
    async fn commands(&self) -> hapax::Result<String>;
}
