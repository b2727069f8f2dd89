//! The statements, with the schema of the store in the names of their tables.

use super::schema::Schema;

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) begin: BatchStatement,
    pub(super) renew: BatchStatement,
    pub(super) complete: BatchStatement,
    pub(super) swap: BatchStatement,
    pub(super) read: String,
    pub(super) sweep: String,
    pub(super) scan: String,
    pub(super) purge: String,
    pub(super) count_unknown: String,
    pub(super) facts: String,
}

/// A statement that carries out several calls at once.
#[derive(Debug)]
pub(super) struct BatchStatement {
    /// For several calls. It leaves out the records that another transaction has locked: a call that waited for a lock
    /// would delay all others of its batch, and two batches could wait for each other.
    pub(super) skipping: String,
    /// For one call. It waits for the lock of its record.
    pub(super) waiting: String,
}

impl BatchStatement {
    fn new(sql: String) -> Self {
        Self { waiting: sql.replace(" for update skip locked", " for update"), skipping: sql }
    }
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        let [begin, renew, complete, swap] = [
            include_str!("records/begin.sql"),
            include_str!("records/renew.sql"),
            include_str!("records/complete.sql"),
            include_str!("records/swap.sql"),
        ]
        .map(|sql| BatchStatement::new(schema.qualify(sql)));
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
