//! The statements of the limits on PostgreSQL, and the effect that all of them write.

use anyhow::{Context, ensure};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Statement, Transaction};
use uuid::Uuid;

use crate::subjects::ANSWER;

/// The effects, the bare claim rows, and the rows of the published pattern.
pub(super) const TABLES: &str = "
    create table effect (operation uuid not null, amount integer not null);
    create table bare_claim (operation uuid primary key, fingerprint bytea not null, answer bytea not null);
    create table inbox (operation uuid primary key, status text not null, answer bytea)";

pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Writes the effects of these operations at once.
pub(super) async fn write_effects(client: &Client, operations: &[Uuid]) -> Result<(), tokio_postgres::Error> {
    let effect = "insert into effect select operation, 5 from unnest($1::uuid[]) operation";
    client.query_typed(effect, &[(&operations, Type::UUID_ARRAY)]).await.map(drop)
}

/// Claims operations by a bare row for each, in the order of the parameters: the operations, the fingerprint, the
/// answer.
const BARE_CLAIM: &str = "insert into bare_claim select operation, $2, $3 from unnest($1::uuid[]) operation
                          on conflict do nothing returning operation";

/// Writes effects with a bare row for each.
pub(super) async fn bare_transaction(transaction: &Transaction<'_>, operations: &[Uuid]) -> anyhow::Result<()> {
    let parameters = [
        (&operations as &(dyn ToSql + Sync), Type::UUID_ARRAY),
        (&&[7_u8; 12][..], Type::BYTEA),
        (&ANSWER, Type::BYTEA),
    ];
    let claimed = transaction.query_typed(BARE_CLAIM, &parameters).await?;
    ensure!(claimed.len() == operations.len(), "a bare claim was not new");
    write_effects(transaction.client(), operations).await.context("the effect")
}

/// Prepares the bare claim on this connection.
pub(super) async fn prepare_bare_claim(client: &Client) -> anyhow::Result<Statement> {
    Ok(client.prepare_typed(BARE_CLAIM, &[Type::UUID_ARRAY, Type::BYTEA, Type::BYTEA]).await?)
}

/// Writes effects with a bare row for each, by a prepared statement. As in a handler, that of the effect is not.
pub(super) async fn prepared_bare_transaction(
    transaction: &Transaction<'_>,
    claim: &Statement,
    operations: &[Uuid],
) -> anyhow::Result<()> {
    let claimed = transaction.query(claim, &[&operations, &&[7_u8; 12][..], &ANSWER]).await?;
    ensure!(claimed.len() == operations.len(), "a bare claim was not new");
    write_effects(transaction.client(), operations).await.context("the effect")
}

/// The pattern of many tutorials, for one operation: a row that is locked while its message is handled.
pub(super) async fn locking_transaction(transaction: &Transaction<'_>, operations: &[Uuid]) -> anyhow::Result<()> {
    let operation = &operations[0];
    let key = [(operation as &(dyn ToSql + Sync), Type::UUID)];
    let insert = "insert into inbox values ($1, 'received') on conflict do nothing";
    transaction.query_typed(insert, &key).await?;
    let lock = "select status from inbox where operation = $1 for update";
    ensure!(transaction.query_typed(lock, &key).await?.len() == 1, "the row is missing");
    write_effects(transaction.client(), operations).await?;
    let end = "update inbox set status = 'done', answer = $2 where operation = $1";
    transaction.query_typed(end, &[(operation, Type::UUID), (&ANSWER, Type::BYTEA)]).await?;
    Ok(())
}
