use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use hapax_core::broker::{Job, Process};
use hapax_core::ledger::{Call, Entry, HandlerFailure, Work};
use hapax_core::worker::MESSAGE_RULE;
use hapax_core::{Identity, Key, Scope};
use hapax_stores::{HandleJobs, PostgresLedger, PostgresTransaction};
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::subjects::ANSWER;
use crate::subjects::statements::{bare_transaction, connect, locking_transaction, write_effects};

/// The way in which a bare loop protects the effects of its messages against copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopKind {
    /// Effects with bare claim rows.
    Claims,
    /// Effects with rows of the ledger.
    Ledger,
    /// The pattern of many tutorials: a row that is locked while its message is handled.
    Locked,
    /// Another one: a lock and a result in Redis.
    RedisKeys,
}

/// A message that a loop has received.
pub(super) struct ReceivedMessage {
    pub(super) key: Uuid,
    pub(super) payload: Vec<u8>,
}

/// A loop with its connections.
pub(super) enum LoopBody {
    Claims(Client),
    Ledger(Box<PostgresLedger>),
    Locked(Client),
    RedisKeys(Client, Box<redis::Connection>),
}

impl LoopBody {
    pub(super) fn open(kind: LoopKind, runtime: &Runtime, postgres: &str, redis: Option<&str>) -> anyhow::Result<Self> {
        let connect = || runtime.block_on(connect(postgres));
        Ok(match kind {
            LoopKind::Claims => Self::Claims(connect()?),
            LoopKind::Locked => Self::Locked(connect()?),
            LoopKind::Ledger => {
                let _inside = runtime.enter();
                Self::Ledger(Box::new(super::ledger(postgres)?))
            }
            LoopKind::RedisKeys => {
                let connection = redis::Client::open(redis.context("no Redis was started")?)?.get_connection()?;
                Self::RedisKeys(connect()?, Box::new(connection))
            }
        })
    }

    /// Has the effects of these messages.
    pub(super) async fn handle(&mut self, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        match self {
            Self::Claims(client) => {
                let transaction = client.transaction().await?;
                bare_transaction(&transaction, &keys(messages)).await?;
                Ok(transaction.commit().await?)
            }
            Self::Locked(client) => {
                let transaction = client.transaction().await?;
                locking_transaction(&transaction, &keys(messages)).await?;
                Ok(transaction.commit().await?)
            }
            Self::Ledger(ledger) => through_the_ledger(ledger, messages).await,
            Self::RedisKeys(client, redis) => {
                for message in messages {
                    with_redis_keys(client, redis, message.key).await?;
                }
                Ok(())
            }
        }
    }
}

fn keys(messages: &[ReceivedMessage]) -> Vec<Uuid> {
    messages.iter().map(|message| message.key).collect()
}

async fn through_the_ledger(ledger: &PostgresLedger, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
    let (identity, scope) = (Identity::plain(), Scope::untenanted("bench")?);
    let work = |message: &ReceivedMessage| {
        let key = Key::new(message.key.to_string())?;
        let fingerprint = identity.fingerprint(MESSAGE_RULE, &[&message.payload, b""]);
        let call = Call::from(identity.call(&scope, &key).fingerprint(fingerprint));
        anyhow::Ok(Work { call, ordering_key: None, is_redelivered: false })
    };
    let work = messages.iter().map(work).collect::<anyhow::Result<Vec<Work>>>()?;
    let results = ledger
        .run_batch(work, async |transaction, entries| {
            write_effects(transaction, &operations(entries)).await?;
            Ok(answers(entries))
        })
        .await;
    ensure!(results.iter().all(Result::is_ok), "a call was refused");
    Ok(())
}

/// Handles one message as the pattern with Redis does: takes the lock, looks for a result, writes the effect in
/// PostgreSQL, writes the result, and frees the lock.
async fn with_redis_keys(client: &mut Client, redis: &mut redis::Connection, key: Uuid) -> anyhow::Result<()> {
    let (lock, result) = (format!("lock:{key}"), format!("result:{key}"));
    let mut set = redis::cmd("SET");
    let is_locked: Option<String> = set.arg(&lock).arg("1").arg("NX").arg("PX").arg(30_000).query(redis)?;
    ensure!(is_locked.is_some(), "a key is locked");
    let known: Option<Vec<u8>> = redis::cmd("GET").arg(&result).query(redis)?;
    ensure!(known.is_none(), "a key has a result");
    let transaction = client.transaction().await?;
    write_effects(transaction.client(), &[key]).await?;
    transaction.commit().await?;
    redis::cmd("SET").arg(&result).arg(ANSWER).arg("EX").arg(86_400).query::<()>(redis)?;
    redis::cmd("DEL").arg(&lock).query::<()>(redis)?;
    Ok(())
}

/// The handler of the measured worker: it writes the effect of each message, and the ledger writes its row.
pub(super) fn process(ledger: &PostgresLedger) -> Arc<dyn Process> {
    Arc::new(ledger.process(EffectHandler))
}

struct EffectHandler;

impl HandleJobs<Bytes> for EffectHandler {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        _jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<Bytes>, HandlerFailure<Bytes>> {
        write_effects(transaction, &operations(entries)).await?;
        Ok(answers(entries))
    }
}

fn operations(entries: &[Entry]) -> Vec<Uuid> {
    entries.iter().map(|entry| Uuid::from_bytes(*entry.operation().as_bytes())).collect()
}

fn answers(entries: &[Entry]) -> Vec<Bytes> {
    vec![Bytes::from_static(ANSWER); entries.len()]
}
