//! Sequences that are behind their tables, as after a restore of the rows alone.

use hapax_core::Result;
use hapax_core::store::{Finding, Severity};

use super::call_error::PostgresCallError;
use super::pool::ConnectionPool;
use super::schema::Schema;

/// The sequence of the ids of the outbox.
pub(super) const OUTBOX: SequenceCheck = SequenceCheck {
    sql: include_str!("outbox/sequence.sql"),
    damage: "new events leave before older ones of their keys, or cannot be written",
};

/// The sequence of the numbers of dead letters.
pub(super) const DEAD: SequenceCheck =
    SequenceCheck { sql: include_str!("dead/sequence.sql"), damage: "dead letters cannot be written" };

/// Finds out whether a sequence draws numbers that rows have.
pub(super) struct SequenceCheck {
    /// Returns the remedy, or no row.
    sql: &'static str,
    /// What happens meanwhile.
    damage: &'static str,
}

impl SequenceCheck {
    pub(super) async fn run(&self, pool: &ConnectionPool, schema: &Schema) -> Result<Option<Finding>> {
        let rows = pool.query(&schema.qualify(self.sql), &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let remedy: &str = row.try_get("remedy").map_err(PostgresCallError::Sent)?;
        let message = format!(
            "a sequence is behind its table, as after a restore without it: {}; as the owner run `{remedy}`",
            self.damage
        );
        Ok(Some(Finding { severity: Severity::Refuse, message }))
    }
}
