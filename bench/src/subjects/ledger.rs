//! The ledger, beside the same effect with a bare row for each operation.

mod postgres;
mod sqlite;
mod sweep;

use crate::harness::{Limit, Subject};
use postgres::{Database, Pass};

/// The calls of one batch.
const BATCH: usize = 256;

/// The ledger on PostgreSQL and on SQLite.
pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let database = Database::start()?;
    let single = |name, clients| Subject {
        name,
        what: "an insert in a transaction of its own, with its row of the ledger",
        run: database.through_the_ledger(clients, 1, Pass::Fresh),
        limit: Some(Limit {
            what: "the same insert with a bare claim row, through the driver alone",
            run: database.bare(clients, 1),
            at_least: Some(0.9),
        }),
    };
    Ok(vec![
        single("ledger on PostgreSQL, 1 client", 1),
        single("ledger on PostgreSQL, 8 clients", 8),
        single("ledger on PostgreSQL, 32 clients", 32),
        Subject {
            name: "ledger on PostgreSQL, batches",
            what: "an insert; 256 to a transaction, with their rows of the ledger; 1 client",
            run: database.through_the_ledger(1, BATCH, Pass::Fresh),
            limit: Some(Limit {
                what: "the same set-based inserts with bare claim rows",
                run: database.bare(1, BATCH),
                at_least: Some(0.7),
            }),
        },
        Subject {
            name: "ledger on PostgreSQL, added namespace",
            what: "as the batches, in a namespace without rows, in a table that was never analysed",
            run: database.in_added_namespaces(),
            limit: Some(Limit {
                what: "the same set-based inserts with bare claim rows",
                run: database.bare(1, BATCH),
                at_least: Some(0.7),
            }),
        },
        Subject {
            name: "ledger on PostgreSQL, replays",
            what: "a call whose operation has ended; batches of 256",
            run: database.through_the_ledger(1, BATCH, Pass::Replay),
            limit: Some(Limit {
                what: "the first pass",
                run: database.through_the_ledger(1, BATCH, Pass::Fresh),
                at_least: Some(2.0),
            }),
        },
        Subject {
            name: "published pattern on PostgreSQL, 8 clients",
            what: "INSERT, SELECT FOR UPDATE, the effect and UPDATE for each message, in a transaction of its own",
            run: database.published_pattern(8),
            limit: Some(Limit {
                what: "the ledger with 8 clients",
                run: database.through_the_ledger(8, 1, Pass::Fresh),
                at_least: None,
            }),
        },
        sweep::beside_calls()?,
        sqlite::batches(),
    ])
}

/// The ledger on PostgreSQL in a table of ten million rows.
pub(crate) fn among_many() -> anyhow::Result<Vec<Subject>> {
    let database = Database::start()?;
    database.fill()?;
    Ok(vec![
        Subject {
            name: "ledger on PostgreSQL among 10,000,000 rows, batches",
            what: "an insert; 256 to a transaction, with their rows of the ledger; 1 client",
            run: database.through_the_ledger(1, BATCH, Pass::Fresh),
            limit: Some(Limit {
                what: "the same set-based inserts with bare claim rows, in a table of 10,000,000 of them",
                run: database.bare(1, BATCH),
                at_least: Some(0.7),
            }),
        },
        Subject {
            name: "ledger on PostgreSQL among 10,000,000 rows, 8 clients",
            what: "an insert in a transaction of its own, with its row of the ledger",
            run: database.through_the_ledger(8, 1, Pass::Fresh),
            limit: Some(Limit {
                what: "the same insert with a bare claim row, in a table of 10,000,000 of them",
                run: database.bare(8, 1),
                at_least: Some(0.7),
            }),
        },
    ])
}
