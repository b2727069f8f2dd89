//! The ledger on PostgreSQL in transactions of sqlx. It sends the statements of the ledger in `postgres`, and needs
//! nothing else of it.

mod faults;
mod runner;
mod statements;
mod uuid;

use std::sync::Arc;

use hapax_core::gate::Answer;
use hapax_core::ledger::{self, Call, Claimed, Entry, Event, Terms};
use hapax_core::{Error, ErrorKind, EventId, OperationId, Result, telemetry};
use sqlx::PgConnection;

use crate::schema::Schema;
pub use runner::{HandleSqlxJobs, SqlxProcess, SqlxRunner};
use statements::{SqlxSql, SqlxStatements};

/// A ledger on PostgreSQL for a service that uses sqlx: `claim`, `emit` and `finish` in a transaction of the service's
/// own. Cheap to clone. `hapax migrate` creates the tables; they are those of `PostgresLedger`, which replays what this
/// ledger has finished, and the other way round.
///
/// ```no_run
/// # async fn transfer(pool: sqlx::PgPool, call: hapax::ledger::Call) -> Result<String, hapax::BoxError> {
/// use hapax::ledger::{Claimed, Event, Terms};
/// use hapax::stores::SqlxLedger;
/// use sqlx::Connection;
///
/// let ledger = SqlxLedger::new(Terms::new("transfers")?);
/// let mut connection = pool.acquire().await?;
/// let mut transaction = connection.begin().await?;
/// let mut entry = match ledger.claim::<String>(&mut transaction, &call).await? {
///     Claimed::Fresh(entry) => entry,
///     Claimed::Replay(answer) => return Ok(answer),
///     Claimed::Mismatch | Claimed::Busy | Claimed::Dead => return Err("not now, or never".into()),
/// };
/// sqlx::query("insert into transfer values (5)").execute(&mut *transaction).await?;
/// entry.emit(Event::new("transferred", "5"))?;
/// let answer = String::from("transferred");
/// entry.finish(&mut transaction, &answer).await?;
/// transaction.commit().await?;
/// # Ok(answer)
/// # }
/// ```
///
/// # Run the transaction in a task of its own
/// If the future of `begin` is dropped, sqlx up to 0.9.0 may put the connection back into its pool with the transaction
/// open. The statements of the next user are then part of it, and are lost with it. A handler of a web server is
/// dropped when its client disconnects. So spawn the transaction, and wait for the task. Behind a gate nothing is to be
/// done: its handler runs in a task of its own. `claim` and `finish` begin and end no transaction.
///
/// A COMMIT of an aborted transaction is a rollback for which sqlx returns `Ok`. `finish` fails in such a transaction:
/// call it last, and pass on its error.
///
/// # Transactions that the ledger opens
/// [`SqlxLedger::runner`] runs calls, batches, and the messages of a worker, in transactions on connections of a pool.
/// It closes the connection of a transaction that is dropped.
#[derive(Clone, Debug)]
pub struct SqlxLedger {
    terms: Terms,
    sql: Arc<SqlxSql>,
}

impl SqlxLedger {
    /// A ledger whose tables are in the schema `public`. Logs its terms.
    pub fn new(terms: Terms) -> Self {
        telemetry::ledger_opened(&terms);
        Self { terms, sql: Arc::new(SqlxSql::new(&Schema::default())) }
    }

    /// The same ledger, with its tables in another schema.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, longer than 63 bytes, or has other characters than ASCII letters, digits,
    /// underscores and hyphens.
    pub fn in_schema(self, name: &str) -> Result<Self> {
        let message = "the name of a schema has 1 to 63 letters, digits, underscores and hyphens";
        let schema = Schema::new(name).ok_or_else(|| Error::new(ErrorKind::Invalid, message))?;
        Ok(Self { sql: Arc::new(SqlxSql::new(&schema)), ..self })
    }

    /// The terms.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Claims an operation in the open transaction of this connection, or in a savepoint of one. A
    /// [`sqlx::Transaction`] can be given as it is.
    ///
    /// # Errors
    /// - `NotApplied`: roll the transaction back and run it again: a conflict (40001, 40P01), a lost connection, or a
    ///   failed statement. Also if the connection has no open transaction: what it claims alone cannot commit.
    /// - `Invalid`: the transaction has claimed this operation before.
    /// - `Unusable`: the tables are missing, or the role lacks a permission.
    /// - `Damaged`: the recorded answer cannot be decoded.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn claim<A: Answer>(&self, transaction: &mut PgConnection, call: &Call) -> Result<Claimed<A, SqlxEntry>> {
        let mut statements = SqlxStatements::new(&self.sql, transaction);
        let claimed = ledger::claim_one(&mut statements, self.terms.namespace(), call).await?;
        Ok(claimed.map_entry(|entry| SqlxEntry { entry, sql: Arc::clone(&self.sql) }))
    }
}

impl AsRef<Terms> for SqlxLedger {
    fn as_ref(&self) -> &Terms {
        &self.terms
    }
}

/// An entry of a [`SqlxLedger`], claimed in a transaction of the caller's own.
#[derive(Debug)]
#[must_use = "a transaction with an entry that is not finished cannot commit"]
pub struct SqlxEntry {
    entry: Entry,
    sql: Arc<SqlxSql>,
}

impl SqlxEntry {
    /// The id of the operation: use it as the transaction id of the effect.
    pub fn operation(&self) -> OperationId {
        self.entry.operation()
    }

    /// Adds an event, which leaves after the commit. Returns its id.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was added.
    pub fn emit(&mut self, event: Event) -> Result<EventId> {
        self.entry.emit(event)
    }

    /// As [`emit`](Self::emit), and the events of a key that are emitted so are published in the order in which their
    /// transactions commit; see [`Entry::emit_ordered`].
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and `Invalid` if the event has no ordering key.
    pub fn emit_ordered(&mut self, event: Event) -> Result<EventId> {
        self.entry.emit_ordered(event)
    }

    /// Gives the entry up because the operation is refused, and logs nothing; see [`Entry::abandon`]. Roll the
    /// transaction back then.
    pub fn abandon(self) {
        self.entry.abandon();
    }

    /// Finishes the entry with this answer, and writes its events. Do it last, then commit.
    ///
    /// # Errors
    /// `NotApplied` if the transaction must be rolled back: a conflict, a failed statement, or a claim that was rolled
    /// back before.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn finish<A: Answer>(self, transaction: &mut PgConnection, answer: &A) -> Result<()> {
        let mut statements = SqlxStatements::new(&self.sql, transaction);
        ledger::finish_one(&mut statements, self.entry, answer).await
    }
}
