//! The statements, with the schema of the store in the names of their tables.
//!
//! A statement may run under a search path that others can add to: behind a pooler, or in the transaction of a caller.
//! So that it calls nothing of theirs, it names the schema of every function, table and type of the system, except
//! `unnest` with several arrays, which is syntax. An operator has exactly the types on its two sides for which the
//! system has it: PostgreSQL prefers an operator that needs no conversion, wherever it is.

use super::schema::Schema;

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) begin: CallStatements,
    pub(super) renew: CallStatements,
    pub(super) complete: CallStatements,
    pub(super) swap: CallStatements,
    pub(super) read: String,
    pub(super) sweep: String,
    pub(super) scan: String,
    pub(super) purge: String,
    pub(super) count_unknown: String,
    pub(super) facts: String,
}

/// The statements that carry out calls of one kind.
#[derive(Debug)]
pub(super) struct CallStatements {
    /// For one call, prepared. It waits if another transaction has locked the record.
    pub(super) single: String,
    /// For one call on a connection without prepared statements: that of a batch, but it waits, too.
    pub(super) waiting: String,
    /// For several calls. It leaves out the records that another transaction has locked: a call that waited for a lock
    /// would delay all others of its batch, and two batches could wait for each other.
    pub(super) skipping: String,
}

impl CallStatements {
    fn new(schema: &Schema, single: &str, batch: &str) -> Self {
        let skipping = schema.qualify(batch);
        let waiting = skipping.replace(" for update skip locked", " for update");
        Self { single: schema.qualify(single), waiting, skipping }
    }
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        let [begin, renew, complete, swap] = [
            (include_str!("records/begin.sql"), include_str!("batch/begin.sql")),
            (include_str!("records/renew.sql"), include_str!("batch/renew.sql")),
            (include_str!("records/complete.sql"), include_str!("batch/complete.sql")),
            (include_str!("records/swap.sql"), include_str!("batch/swap.sql")),
        ]
        .map(|(single, batch)| CallStatements::new(schema, single, batch));
        let [read, sweep, scan, purge, count_unknown, facts] = [
            include_str!("records/read.sql"),
            include_str!("records/sweep.sql"),
            include_str!("records/scan.sql"),
            include_str!("records/purge.sql"),
            include_str!("records/count_unknown.sql"),
            include_str!("records/facts.sql"),
        ]
        .map(|sql| schema.qualify(sql));
        Self { begin, renew, complete, swap, read, sweep, scan, purge, count_unknown, facts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_uses_the_time_at_which_its_transaction_began() {
        let statements = format!("{:?}", Statements::new(&Schema::default()));
        for frozen in ["now()", "current_timestamp", "statement_timestamp", "transaction_timestamp"] {
            assert!(!statements.contains(frozen), "{frozen}");
        }
        assert!(!statements.contains(" hapax_"), "a table has no schema: {statements}");
    }
}
