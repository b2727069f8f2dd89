//! Dead letters in a PostgreSQL database. The server's clock is the clock of their leases.

mod columns;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use columns::WrittenLetter;
use hapax_core::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, KeptLetter, LetterChange,
    LetterWord, ListedLetter, MarkedLetter, SeenLetter,
};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use tokio::sync::OnceCell;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresUrl;
use super::migrations;
use super::pool::{ConnectionPool, Parameter};
use super::schema::Schema;
use super::sequences;
use crate::letter::readable;

/// How many connections a handle uses at most: dead letters are rare.
const CONNECTIONS: usize = 4;

/// Dead letters in a PostgreSQL database. At its first call it creates its tables, if they are missing and the role may
/// create them.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::broker::DeadLetterStore;
/// use hapax::stores::PostgresDeadLetters;
///
/// let letters = PostgresDeadLetters::connect(&"postgres://shop@localhost/shop".parse()?)?;
/// for letter in letters.list(None, 100).await? {
///     println!("{}: {} after {} attempts", letter.id, letter.reason.as_str(), letter.attempts);
/// }
/// # Ok(())
/// # }
/// ```
pub struct PostgresDeadLetters {
    pool: ConnectionPool,
    url: Arc<PostgresUrl>,
    sql: DeadLetterSql,
    /// Set once the tables are there.
    has_tables: OnceCell<()>,
}

/// The texts of the statements, with the tables in their schema.
struct DeadLetterSql {
    put: String,
    list: String,
    find: String,
    mark: String,
    use_up: String,
    remove: String,
    keys: String,
    take: String,
    postpone: String,
    finish: String,
}

impl DeadLetterSql {
    fn new(schema: &Schema) -> Self {
        Self {
            put: schema.qualify(include_str!("dead/put.sql")),
            list: schema.qualify(include_str!("dead/list.sql")),
            find: schema.qualify(include_str!("dead/find.sql")),
            mark: schema.qualify(include_str!("dead/mark.sql")),
            use_up: schema.qualify(include_str!("dead/use_up.sql")),
            remove: schema.qualify(include_str!("dead/remove.sql")),
            keys: schema.qualify(include_str!("dead/keys.sql")),
            take: schema.qualify(include_str!("dead/take.sql")),
            postpone: schema.qualify(include_str!("dead/postpone.sql")),
            finish: schema.qualify(include_str!("dead/finish.sql")),
        }
    }
}

impl PostgresDeadLetters {
    /// Dead letters in the database of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn connect(url: &PostgresUrl) -> Result<Self> {
        Self::with(url, Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// Dead letters in the database of this URL, on this runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    pub fn with(url: &PostgresUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let url = Arc::new(url.clone());
        let pool = ConnectionPool::new(Arc::clone(&url), runtime, url.connections.min(CONNECTIONS))?;
        let sql = DeadLetterSql::new(&url.schema);
        Ok(Self { pool, url, sql, has_tables: OnceCell::new() })
    }

    /// Runs one of the statements, once the tables are there.
    async fn query(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.create_tables().await?;
        Ok(self.pool.query(statement, parameters).await?)
    }

    async fn create_tables(&self) -> Result<()> {
        let create = async || migrations::prepare(&self.pool, &self.url).await;
        self.has_tables.get_or_try_init(create).await?;
        Ok(())
    }

    /// Frees letters only after this time. A worker that extends its lease has them until then.
    async fn move_end(&self, ids: &[DeadLetterId], by: Duration, is_taken: bool) -> Result<()> {
        let ids: Vec<Uuid> = ids.iter().map(uuid).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&ids, Type::UUID_ARRAY), (&by.as_secs_f64(), Type::FLOAT8), (&is_taken, Type::BOOL)];
        self.query(&self.sql.postpone, &parameters).await.map(drop)
    }

    async fn put_one(&self, letter: DeadLetter) -> Result<()> {
        let written = WrittenLetter::of(&letter);
        let bytes = written.bytes();
        self.query(&self.sql.put, &written.parameters(&bytes)).await.map(drop)
    }
}

#[async_trait]
impl DeadLetters for PostgresDeadLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        // One after the other, so that the list has their order.
        let mut results = Vec::with_capacity(letters.len());
        for letter in letters {
            results.push(self.put_one(letter).await);
        }
        results
    }
}

#[async_trait]
impl DeadLetterStore for PostgresDeadLetters {
    async fn check(&self) -> Result<Vec<Finding>> {
        self.create_tables().await?;
        Ok(sequences::DEAD.run(&self.pool, &self.url.schema).await?.into_iter().collect())
    }

    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>> {
        let unreadable = |error| Error::new(ErrorKind::Invalid, "this is no cursor of a list").caused_by(error);
        let after: i64 = after.map_or(Ok(0), |cursor| cursor.as_str().parse()).map_err(unreadable)?;
        let rows = self.query(&self.sql.list, &[(&after, Type::INT8), (&count(limit), Type::INT8)]).await?;
        rows.iter().map(columns::listed).collect()
    }

    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>> {
        let rows = self.query(&self.sql.find, &[(&uuid(&id), Type::UUID)]).await?;
        rows.first().map(columns::kept).transpose()
    }

    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange> {
        let (number, at, marked_at) = seen_columns(seen)?;
        let reason = word.map(|word| word.reason().as_str());
        let replaced: Vec<&str> = word.map_or(&[][..], LetterWord::replaces).iter().map(|it| it.as_str()).collect();
        let parameters: [Parameter<'_>; 6] = [
            (&uuid(&id), Type::UUID),
            (&number, Type::INT8),
            (&marked_at, Type::TIMESTAMPTZ),
            (&reason, Type::TEXT),
            (&replaced, Type::TEXT_ARRAY),
            (&at, Type::TIMESTAMPTZ),
        ];
        columns::change(self.query(&self.sql.mark, &parameters).await?.first())
    }

    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>> {
        let (with, without) = (DeadReason::NotDone.as_str(), DeadReason::OutcomeUnknown.as_str());
        let parameters: [Parameter<'_>; 4] = [
            (&uuid(&id), Type::UUID),
            (&columns::stored_time(marked_at), Type::TIMESTAMPTZ),
            (&without, Type::TEXT),
            (&with, Type::TEXT),
        ];
        let rows = self.query(&self.sql.use_up, &parameters).await?;
        Ok(rows.first().map(columns::marked_at).transpose()?.flatten())
    }

    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange> {
        let (number, at, marked_at) = seen_columns(seen)?;
        let parameters: [Parameter<'_>; 4] = [
            (&uuid(&id), Type::UUID),
            (&number, Type::INT8),
            (&marked_at, Type::TIMESTAMPTZ),
            (&at, Type::TIMESTAMPTZ),
        ];
        columns::change(self.query(&self.sql.remove, &parameters).await?.first())
    }

    fn tells_ordering_keys(&self) -> bool {
        true
    }

    async fn keys_with_letters(&self, source: &str, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let rows = self.query(&self.sql.keys, &[(&source, Type::TEXT), (&asked, Type::BYTEA_ARRAY)]).await?;
        rows.iter().map(columns::ordering_key).collect()
    }

    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>> {
        let parameters: [Parameter<'_>; 3] =
            [(&source, Type::TEXT), (&count(limit), Type::INT8), (&lease.as_secs_f64(), Type::FLOAT8)];
        let rows = self.query(&self.sql.take, &parameters).await?;
        let taken = rows.iter().map(|row| Ok((columns::id(row)?, columns::kept(row)))).collect::<Result<Vec<_>>>()?;
        let (marked, left_out) = readable(taken);
        if !left_out.is_empty() {
            // Nobody processes them, so they can be dropped.
            self.postpone(&left_out, lease).await?;
        }
        Ok(marked)
    }

    async fn extend(&self, ids: &[DeadLetterId], lease: Duration) -> Result<()> {
        self.move_end(ids, lease, true).await
    }

    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()> {
        self.move_end(ids, by, false).await
    }

    async fn finish(&self, redriven: &[(DeadLetterId, Timestamp)]) -> Result<()> {
        let ids: Vec<Uuid> = redriven.iter().map(|(id, _)| uuid(id)).collect();
        let marks: Vec<SystemTime> = redriven.iter().map(|(_, marked_at)| columns::stored_time(*marked_at)).collect();
        let parameters: [Parameter<'_>; 2] = [(&ids, Type::UUID_ARRAY), (&marks, Type::TIMESTAMPTZ_ARRAY)];
        self.query(&self.sql.finish, &parameters).await.map(drop)
    }
}

/// The number, the time and the mark that an operator saw.
fn seen_columns(seen: &SeenLetter) -> Result<(i64, SystemTime, Option<SystemTime>)> {
    let wrong = |error| Error::new(ErrorKind::Invalid, "this store has no such `seen`").caused_by(error);
    let (number, at) = seen.written.split_once('-').unwrap_or((&seen.written, "0"));
    let at = columns::stored_time(Timestamp(at.parse().map_err(wrong)?));
    Ok((number.parse().map_err(wrong)?, at, seen.marked_at.map(columns::stored_time)))
}

fn uuid(id: &DeadLetterId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl fmt::Debug for PostgresDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresDeadLetters").field("url", &self.url).finish_non_exhaustive()
    }
}
