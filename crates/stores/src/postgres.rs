//! Records in PostgreSQL. The server's clock is the only clock.
//!
//! ```text
//! begin, renew, complete, swap   concurrent calls share a statement in a transaction of its own (batch.rs); the
//!                                machine decides a row of the protocol that the statement does not carry out
//! read                           one statement
//! sweep                          small steps over the pages of the table; records that a call locks are skipped
//! ```
//!
//! Each statement has a connection to itself until its reply, and is sent once. The statement of a single call is
//! prepared, unless a pooler may be in between (pool/direct.rs). A call that is cancelled, or whose connection breaks,
//! may or may not be applied.
//!
//! A first token is drawn from an estimate of the server's clock. The statement that stores it compares it with the
//! server's clock, and with the largest token of the records that were removed.

mod batch;
mod call_error;
mod check;
mod clock;
mod dead;
mod inspection;
mod ledger;
mod migrations;
mod outbox;
mod pool;
mod row;
mod sequences;
mod statements;
mod sweep;
mod tables;
mod timeline;
mod trust;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Severity, Store, Swapped};
use hapax_core::{Error, ErrorKind, Record, RecordKey, Result, Seconds};
use tokio::sync::{OnceCell, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use batch::{BatchCall, BatchQueue, BeginCall, CompleteCall, RenewCall, SwapCall};
use call_error::{NO_TABLES, PostgresCallError};
use check::{ServerFacts, record_findings};
use clock::ServerClock;
use pool::{ConnectionPool, Parameter};
use row::RecordReply;
use statements::Statements;
use sweep::SweepPosition;
use timeline::TimelineMonitor;

use crate::schema;

pub use dead::PostgresDeadLetters;
pub use ledger::{HandleJobs, PostgresEntry, PostgresLedger, PostgresProcess, PostgresTransaction};
pub use outbox::PostgresOutbox;
pub use tables::PostgresTables;
pub use url::PostgresUrl;

/// A store on a PostgreSQL server, 14 or later. At its first call it creates its tables, if they are missing and the
/// role may create them.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::{Gate, Identity, Inspect, Key, Scope, Settings};
/// use hapax::stores::Postgres;
///
/// let store = Arc::new(Postgres::connect("postgres://shop@localhost/shop")?);
/// // At start, and once a minute: the server may be a standby, or may not sync its commits.
/// for finding in store.check().await? {
///     println!("{:?}: {}", finding.severity, finding.message);
/// }
/// let gate = Gate::builder(store, Settings::default()).build()?;
/// let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// gate.run(call, |_| async { Ok(String::from("charged")) }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Postgres {
    shared: Arc<Shared>,
    pool: ConnectionPool,
    queues: Queues,
}

/// The calls that wait to be sent, by their statement.
struct Queues {
    begin: Arc<BatchQueue<BeginCall>>,
    renew: Arc<BatchQueue<RenewCall>>,
    complete: Arc<BatchQueue<CompleteCall>>,
    swap: Arc<BatchQueue<SwapCall>>,
}

impl Queues {
    fn new(shared: &Arc<Shared>, pool: &ConnectionPool, connections: usize) -> Self {
        Self {
            begin: BatchQueue::new(shared, pool, connections),
            renew: BatchQueue::new(shared, pool, connections),
            complete: BatchQueue::new(shared, pool, connections),
            swap: BatchQueue::new(shared, pool, connections),
        }
    }
}

/// What all handles to one store share.
struct Shared {
    url: Arc<PostgresUrl>,
    runtime: Arc<dyn Runtime>,
    statements: Statements,
    clock: ServerClock,
    monitor: Arc<TimelineMonitor>,
    /// Set once the tables are there.
    has_tables: OnceCell<()>,
    swept_to: SweepPosition,
}

/// How often a call tries again because the record changed while its statement ran.
const TRIES: usize = 8;

/// The number of connections of a dedicated handle.
const DEDICATED: usize = 2;

impl Postgres {
    /// Creates a store on the server with this URL, on the current tokio runtime. It connects at its first call, so a
    /// server that is down is no error here.
    ///
    /// # Errors
    /// - `Invalid` if the text is not the URL of a PostgreSQL server.
    /// - `Unusable` if a file in the URL cannot be read, or contains no certificate.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &str) -> Result<Self> {
        Self::with(&url.parse()?, Arc::new(Tokio::current()))
    }

    /// Creates a store on the server with this URL, on this runtime.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read, or contains no certificate.
    pub fn with(url: &PostgresUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let url = Arc::new(url.clone());
        let (monitor, connections) = (Arc::new(TimelineMonitor::new(&url.schema)), url.connections);
        let pool = ConnectionPool::watched(Arc::clone(&url), Arc::clone(&runtime), connections, Arc::clone(&monitor))?;
        let shared = Arc::new(Shared {
            statements: Statements::new(&url.schema),
            clock: ServerClock::new(Arc::clone(&runtime)),
            monitor,
            runtime,
            has_tables: OnceCell::new(),
            swept_to: SweepPosition::default(),
            url,
        });
        let queues = Queues::new(&shared, &pool, connections);
        Ok(Self { shared, pool, queues })
    }

    /// Runs one of the statements, once the tables are there.
    async fn query(
        &self,
        statement: impl Fn(&Statements) -> &String,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, PostgresCallError> {
        self.create_tables().await?;
        self.pool.query(statement(&self.shared.statements), parameters).await
    }

    /// Creates the missing tables at the first call, in a task: it ends even if every caller gives up.
    async fn create_tables(&self) -> Result<(), PostgresCallError> {
        if self.shared.has_tables.initialized() {
            return Ok(());
        }
        let (shared, pool, (reply, created)) = (Arc::clone(&self.shared), self.pool.clone(), oneshot::channel());
        self.shared.runtime.spawn(Box::pin(async move {
            let apply = async || migrations::prepare(&pool, &shared.url).await;
            let applied = shared.has_tables.get_or_try_init(apply).await;
            // A failed send means that the caller was cancelled.
            let _ = reply.send(applied.map(drop));
        }));
        let ended =
            || PostgresCallError::Judged(Error::new(ErrorKind::NotApplied, "the runtime of the store has ended"));
        created.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn findings(&self) -> Result<Vec<Finding>, PostgresCallError> {
        let mut connection = self.pool.begin_call().await?;
        self.shared.monitor.observe(connection.client_mut()).await;
        let rows = connection.query(&self.shared.statements.facts, &[]).await?;
        let row = rows.first().ok_or_else(|| {
            PostgresCallError::Judged(Error::new(ErrorKind::NotApplied, "the server does not tell its settings"))
        })?;
        let facts = ServerFacts::read(row).map_err(PostgresCallError::Sent)?;
        let isolation: String = row.try_get("isolation").map_err(PostgresCallError::Sent)?;
        let mut findings = facts.findings(&["hapax_record", "hapax_store"]);
        findings.extend(record_findings(&isolation, self.shared.url.trusts_everybody()));
        findings.extend(trust::findings(&*self.pool.get().await?, &self.shared.url.schema).await?);
        Ok(findings)
    }
}

/// Whether the record is that of the completing attempt.
fn is_held_by(record: &Record, ask: &Complete) -> bool {
    let is_owner = record.state.holding().is_some_and(|holding| holding.owner == ask.claim.owner);
    is_owner && record.token == ask.claim.token && record.fingerprint == ask.fingerprint
}

/// The error for a record that changed in each try.
fn busy() -> Error {
    Error::new(ErrorKind::NotApplied, "the record changed in each of 8 attempts to write it; try again")
}

#[async_trait]
impl Store for Postgres {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        self.create_tables().await?;
        for _ in 0..TRIES {
            let (call, reply) = self.queues.begin.carry_out(BeginCall::new(ask, &self.shared.clock)).await?;
            if reply.is_written {
                return Ok(Inserted::Granted(call.into_grant()));
            }
            if reply.seen.live().is_some() {
                return Ok(Inserted::Found(reply.seen));
            }
            // An expired record is replaced. Otherwise the token was too small, or another begin was faster.
            if reply.seen.record.is_some() {
                let (change, grant) = machine::first_grant(ask, &reply.seen);
                if self.swap(&rk, &reply.seen, &change).await? == Swapped::Yes {
                    return Ok(Inserted::Granted(grant));
                }
            }
        }
        Err(busy())
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let call = RenewCall { rk: *rk, claim: *claim };
        for attempt in 0..TRIES {
            let reply = self.write(&self.queues.renew, call.clone(), attempt).await?;
            if reply.is_written {
                return Ok(Renewed::Yes);
            }
            if let Decision::Reply(renewed) = machine::renew(&reply.seen, claim) {
                return Ok(renewed);
            }
        }
        Err(busy())
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let absent = self.shared.clock.observe_absent();
        // The completed record is the same whatever is stored now, so the machine derives it for an absent record. An
        // age of zero keeps the machine from refusing it as too old.
        let young = Complete { age: Duration::ZERO, retention: Seconds(ask.retention.0.max(1)), ..ask.clone() };
        let Decision::Change(change, _) = machine::complete(&absent, &young) else {
            return Ok(Completed::Gone);
        };
        let may_recreate = matches!(machine::complete(&absent, ask), Decision::Change(..));
        let call = CompleteCall { rk: *rk, ask: ask.clone(), change, may_recreate };
        for attempt in 0..TRIES {
            let reply = self.write(&self.queues.complete, call.clone(), attempt).await?;
            match machine::complete(&reply.seen, ask) {
                _ if reply.is_written && reply.seen.live().is_some() => return Ok(Completed::Done),
                _ if reply.is_written => return Ok(Completed::Recreated),
                Decision::Reply(completed) => return Ok(completed),
                Decision::Change(change, completed) => match &reply.seen.record {
                    // The statement completes such a record, so it was locked, or has changed since the statement
                    // began.
                    Some(record) if reply.seen.live().is_some() && is_held_by(record, ask) => {}
                    // The caller reads and swaps (clause 8 of the contract).
                    Some(record) if reply.seen.live().is_some() => return Ok(Completed::Lost(record.clone())),
                    // An expired record is replaced.
                    Some(_) if self.swap(rk, &reply.seen, &change).await? == Swapped::Yes => return Ok(completed),
                    Some(_) | None => {}
                },
            }
        }
        Err(busy())
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let key = &rk.as_bytes()[..];
        let sending = self.shared.clock.sending();
        let rows = self.query(|statements| &statements.read, &[(&key, Type::BYTEA)]).await?;
        if rows.first().is_some_and(|row| row.get("is_standby")) {
            return Err(Error::new(ErrorKind::NotApplied, "the server is a standby; use the URL of the primary"));
        }
        let reply = row::reply(rows.first(), rk, false)?;
        self.shared.clock.learn(&sending, &reply.seen);
        Ok(reply.seen)
    }

    /// Returns a store with connections of its own, driven by the executor of the caller.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let url = Arc::clone(&self.shared.url);
        let monitor = Arc::clone(&self.shared.monitor);
        let pool = ConnectionPool::watched(url, Arc::new(Tokio::current()), DEDICATED, monitor)?;
        let shared = Arc::clone(&self.shared);
        let queues = Queues::new(&shared, &pool, DEDICATED);
        Ok(Arc::new(Self { shared, pool, queues }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let call = SwapCall { rk: *rk, seen: seen.clone(), next: next.clone() };
        let mut reply = self.write(&self.queues.swap, call.clone(), 0).await?;
        if !reply.is_written && reply.seen.record == seen.record {
            // The record may be locked by another transaction.
            reply = self.write(&self.queues.swap, call, 1).await?;
        }
        Ok(if reply.is_written { Swapped::Yes } else { Swapped::Changed })
    }
}

impl Postgres {
    /// Carries out a call. After its first attempt it is sent alone: then it waits for a record that is locked, and a
    /// batch leaves such a record out.
    async fn write<C: BatchCall>(&self, queue: &Arc<BatchQueue<C>>, call: C, attempt: usize) -> Result<RecordReply> {
        self.create_tables().await?;
        let carried = if attempt == 0 { queue.carry_out(call).await } else { queue.carry_out_alone(call).await };
        carried.map(|(_, reply)| reply)
    }
}

#[async_trait]
impl Inspect for Postgres {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        sweep::sweep(self, &self.shared.swept_to, limit).await
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        inspection::scan(self, ask).await
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        inspection::purge(self, rk, seen).await
    }

    /// Checks the server's version, role and settings, whether it was replaced or lost records, whether the tables are
    /// there, and who else could change what happens to them.
    async fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = self.findings().await?;
        // A server that must not be used gets no tables.
        if findings.iter().all(|finding| finding.severity != Severity::Refuse) {
            self.create_tables().await?;
            let connection = self.pool.get().await?;
            if !migrations::missing(&connection, &self.shared.url.schema).await?.is_empty() {
                return Err(Error::new(ErrorKind::Unusable, NO_TABLES));
            }
            findings.extend(ledger::guard::findings(&connection, &self.shared.url.schema).await?);
        }
        // Last: an event counts as reported, so no later step may fail.
        findings.extend(self.shared.monitor.findings());
        Ok(findings)
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        let rows = self.query(|statements| &statements.count_unknown, &[]).await?;
        let count: i64 = rows[0].try_get("unknown").map_err(PostgresCallError::Sent)?;
        Ok(Some(count.unsigned_abs()))
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.shared.url)
    }
}
