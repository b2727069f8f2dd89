use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row};

/// How long a killed server may be away.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the schema of a run. It is opened again after the server was killed, and the statement is repeated:
/// so a row may be written twice.
pub(super) struct ServerLink {
    config: Config,
    open: Mutex<Option<Arc<OpenServerLink>>>,
}

struct OpenServerLink {
    client: Client,
    // Dropping it closes the connection.
    _connection: JoinSet<()>,
}

impl ServerLink {
    /// A connection to the database of `postgres://…?schema=NAME`. Opens nothing.
    pub(super) fn new(url: &str) -> Result<Self> {
        let (database, schema) = schema_of(url)?;
        let mut config: Config = database.parse()?;
        config.options(format!("-c search_path={schema}")).connect_timeout(Duration::from_secs(5));
        Ok(Self { config, open: Mutex::default() })
    }

    /// Runs one statement.
    pub(super) async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let started = Instant::now();
        loop {
            let error = match self.open().await {
                Ok(open) => match open.client.query(sql, values).await {
                    Ok(rows) => return Ok(rows),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if !is_of_a_lost_server(&error) || started.elapsed() > PATIENCE {
                return Err(error.into());
            }
            *self.open.lock().await = None;
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The number that a statement returns.
    pub(super) async fn number(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<i64> {
        let rows = self.query(sql, values).await?;
        Ok(rows.first().context("the statement returns no row")?.try_get(0)?)
    }

    async fn open(&self) -> Result<Arc<OpenServerLink>, Error> {
        let mut open = self.open.lock().await;
        if let Some(open) = &*open {
            return Ok(Arc::clone(open));
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        let mut connections = JoinSet::new();
        connections.spawn(async move { drop(connection.await) });
        let opened = Arc::new(OpenServerLink { client, _connection: connections });
        *open = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

/// The URL without the schema, and the schema.
pub(super) fn schema_of(url: &str) -> Result<(&str, &str)> {
    url.split_once("?schema=").context("the database of the demo has a schema: postgres://HOST/DATABASE?schema=NAME")
}

/// Whether the server went away, or does not take connections yet.
fn is_of_a_lost_server(error: &Error) -> bool {
    error.code().is_none_or(|code| ["08", "53", "57"].iter().any(|class| code.code().starts_with(class)))
}

impl fmt::Debug for ServerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLink").finish_non_exhaustive()
    }
}
