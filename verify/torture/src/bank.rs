//! The database of the service, as the audit reads it: by SQL, on a connection of its own.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use hapax_testkit::servers::PostgresServer;

use crate::order::{ACCOUNTS, FIRST_BALANCE, account};

/// Everything that the audit reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BankRows {
    pub(crate) balances: BTreeMap<String, i64>,
    pub(crate) effects: Vec<BankEffect>,
    pub(crate) entries: Vec<BankEntry>,
    pub(crate) events: Vec<BankEvent>,
}

/// A row of the table `transfer`, which has no unique constraint: the effect, once for each time that it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BankEffect {
    pub(crate) operation: String,
    pub(crate) payer: String,
    pub(crate) payee: String,
    pub(crate) amount: i64,
}

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BankEntry {
    pub(crate) operation: String,
    pub(crate) namespace: String,
    pub(crate) is_finished: bool,
    pub(crate) answer: String,
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BankEvent {
    pub(crate) operation: String,
    pub(crate) event: String,
    pub(crate) payload: String,
}

const EFFECTS: &str = "select operation, payer, payee, amount from transfer";
const ENTRIES: &str = "
    select operation::text, namespace, verdict = 1, convert_from(answer, 'UTF8')
    from hapax_ledger";
const EVENTS: &str = "
    select coalesce(operation::text, ''), event_id::text, convert_from(payload, 'UTF8')
    from hapax_outbox where topic = 'transfers'";

/// Creates the accounts, before the service starts.
pub(crate) async fn open_accounts(server: &PostgresServer) -> Result<()> {
    let mut sql = String::from("create table account (name text primary key, balance bigint not null);");
    for number in 0..ACCOUNTS {
        write!(sql, "insert into account values ('{}', {FIRST_BALANCE});", account(number))?;
    }
    Ok(server.client().await?.batch_execute(&sql).await?)
}

/// Removes the service's records of layer 1.
pub(crate) async fn forget_records(server: &PostgresServer) -> Result<()> {
    Ok(server.client().await?.batch_execute("truncate hapax_record").await?)
}

/// How many effects there are beyond the first of each operation.
pub(crate) async fn duplicates(server: &PostgresServer) -> Result<u64> {
    let sql = "select count(*) - count(distinct operation) from transfer";
    let row = server.client().await?.query_one(sql, &[]).await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

pub(crate) async fn read(server: &PostgresServer) -> Result<BankRows> {
    let client = server.client().await.context("the database cannot be audited")?;
    let accounts = client.query("select name, balance from account", &[]).await?;
    let (effects, entries) = (client.query(EFFECTS, &[]).await?, client.query(ENTRIES, &[]).await?);
    let events = client.query(EVENTS, &[]).await?;
    Ok(BankRows {
        balances: accounts.iter().map(|row| (row.get(0), row.get(1))).collect(),
        effects: effects
            .iter()
            .map(|row| BankEffect { operation: row.get(0), payer: row.get(1), payee: row.get(2), amount: row.get(3) })
            .collect(),
        entries: entries
            .iter()
            .map(|row| BankEntry {
                operation: row.get(0),
                namespace: row.get(1),
                is_finished: row.get(2),
                answer: row.get(3),
            })
            .collect(),
        events: events
            .iter()
            .map(|row| BankEvent { operation: row.get(0), event: row.get(1), payload: row.get(2) })
            .collect(),
    })
}
