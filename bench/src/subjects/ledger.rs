//! The ledger, beside the same effect with a bare row for each operation.

mod postgres;
mod sqlite;
mod sqlite_once;
mod sweep;

use crate::harness::{Limit, Subject};
use postgres::{Database, Pass};

/// The calls of one batch.
const BATCH: usize = 256;

/// The ledger on PostgreSQL and on SQLite.
pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let database = Database::start()?;
    let mut subjects = singles(&database);
    subjects.extend(batches(&database));
    subjects.extend(replays(&database));
    subjects.push(Subject {
        name: "published pattern on PostgreSQL, 8 clients",
        what: "INSERT, SELECT FOR UPDATE, the effect and UPDATE for each message, in a transaction of its own",
        run: database.published_pattern(8),
        limit: Some(Limit {
            what: "the ledger with 8 clients",
            run: database.through_the_ledger(8, 1, Pass::Fresh),
            at_least: None,
        }),
    });
    subjects.push(sweep::beside_calls()?);
    subjects.push(sqlite::batches());
    subjects.push(sqlite_once::batches());
    Ok(subjects)
}

fn singles(database: &Database) -> Vec<Subject> {
    let single = |name, clients, at_least| Subject {
        name,
        what: "an insert in a transaction of its own, with its row of the ledger",
        run: database.through_the_ledger(clients, 1, Pass::Fresh),
        limit: Some(Limit {
            what: "the same insert with a bare claim row, whose statement is prepared, through the driver alone",
            run: database.bare(clients, 1),
            at_least: Some(at_least),
        }),
    };
    vec![
        single("ledger on PostgreSQL, 1 client", 1, 0.8),
        single("ledger on PostgreSQL, 8 clients", 8, 0.68),
        single("ledger on PostgreSQL, 32 clients", 32, 0.63),
        Subject {
            name: "ledger on PostgreSQL, 8 clients, unprepared limit",
            what: "an insert in a transaction of its own, with its row of the ledger",
            run: database.through_the_ledger(8, 1, Pass::Fresh),
            limit: Some(Limit {
                what: "the same insert with a bare claim row, through the driver alone, without prepared statements",
                run: database.bare_unprepared(8, 1),
                at_least: None,
            }),
        },
    ]
}

fn batches(database: &Database) -> Vec<Subject> {
    let batch = |name, what, run, clients| Subject {
        name,
        what,
        run,
        limit: Some(Limit {
            what: "the same set-based inserts with bare claim rows, whose statement is prepared",
            run: database.bare(clients, BATCH),
            at_least: Some(0.68),
        }),
    };
    vec![
        batch(
            "ledger on PostgreSQL, batches",
            "an insert; 256 to a transaction, with their rows of the ledger; 1 client",
            database.through_the_ledger(1, BATCH, Pass::Fresh),
            1,
        ),
        batch(
            "ledger on PostgreSQL, batches of 4 clients",
            "an insert; 256 to a transaction, with their rows of the ledger; 4 clients",
            database.through_the_ledger(4, BATCH, Pass::Fresh),
            4,
        ),
        batch(
            "ledger on PostgreSQL, added namespace",
            "as the batches of 1 client, in a namespace without rows, in a table that was never analysed",
            database.in_added_namespaces(),
            1,
        ),
        Subject {
            name: "ledger on PostgreSQL, batches, unprepared limit",
            what: "an insert; 256 to a transaction, with their rows of the ledger; 1 client",
            run: database.through_the_ledger(1, BATCH, Pass::Fresh),
            limit: Some(Limit {
                what: "the same set-based inserts with bare claim rows, without prepared statements",
                run: database.bare_unprepared(1, BATCH),
                at_least: None,
            }),
        },
    ]
}

fn replays(database: &Database) -> Vec<Subject> {
    let replay = |name, what, batch, at_least| Subject {
        name,
        what,
        run: database.through_the_ledger(1, batch, Pass::Replay),
        limit: Some(Limit {
            what: "the first pass",
            run: database.through_the_ledger(1, batch, Pass::Fresh),
            at_least: Some(at_least),
        }),
    };
    vec![
        replay("ledger on PostgreSQL, replays", "a call whose operation has ended; batches of 256", BATCH, 2.5),
        replay("ledger on PostgreSQL, single replays", "a call whose operation has ended, by itself", 1, 2.0),
    ]
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
