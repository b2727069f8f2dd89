//! The rows in the files of a run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hapax::stores::{SqliteLedger, SqliteOutbox, SqliteQueue};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::pipeline::delivery::Cause;
use crate::pipeline::rows::{ChargeRow, ENQUEUED, ReceiptRow, RequestRow, account};
use crate::traffic::PaymentOrder;

/// How long a writer waits for another one: longer than the longest pause of a process that writes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens the file of the shop: its queue, its ledger, its outbox and its charges.
pub(super) fn open_shop(path: &Path) -> Result<Connection> {
    let mut connection = open(path)?;
    SqliteOutbox::migrate(&mut connection)?;
    connection.execute_batch(include_str!("shop.sql"))?;
    Ok(connection)
}

/// Opens the file of the consumer: the queue that the relay fills, the inbox and the receipts.
pub(super) fn open_post(path: &Path) -> Result<Connection> {
    let connection = open(path)?;
    connection.execute_batch(include_str!("post.sql"))?;
    Ok(connection)
}

fn open(path: &Path) -> Result<Connection> {
    let mut connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    SqliteQueue::migrate(&mut connection)?;
    SqliteLedger::migrate(&mut connection)?;
    Ok(connection)
}

/// Writes down a request. Returns its id.
pub(super) fn insert_request(
    connection: &Connection,
    operation: &str,
    order: &PaymentOrder,
    result: &str,
) -> rusqlite::Result<i64> {
    let sql = "insert into request (operation, payment, amount_cents, nonce, result) values (?1, ?2, ?3, ?4, ?5)";
    connection.prepare_cached(sql)?.execute(params![operation, order.payment, cents(order), order.nonce, result])?;
    Ok(connection.last_insert_rowid())
}

/// The number of requests for this payment.
pub(super) fn count_requests(connection: &Connection, payment: u32) -> rusqlite::Result<u32> {
    let mut statement = connection.prepare_cached("select count(*) from request where payment = ?1")?;
    statement.query_row([payment], |row| row.get(0))
}

/// Charges a card because of the message with this key. Returns the id of the charge.
pub(super) fn insert_charge(
    connection: &Connection,
    operation: &str,
    order: &PaymentOrder,
    cause: Cause,
) -> rusqlite::Result<i64> {
    let sql = "insert into charge (operation, payment, amount_cents, nonce, account, cause) \
               values (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = params![operation, order.payment, cents(order), order.nonce, account(order), cause.name()];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(connection.last_insert_rowid())
}

/// Sends a receipt.
pub(super) fn insert_receipt(
    connection: &Connection,
    charge: i64,
    order: &PaymentOrder,
    cause: Cause,
) -> rusqlite::Result<()> {
    let sql = "insert into receipt (charge, payment, amount_cents, nonce, account, cause) \
               values (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = params![charge, order.payment, cents(order), order.nonce, account(order), cause.name()];
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

/// All requests, in the order of their ids.
pub(super) fn requests(shop: &Connection) -> rusqlite::Result<Vec<RequestRow>> {
    let sql = "select id, operation, payment, amount_cents, nonce, result from request order by id";
    rows(shop, sql, request)
}

/// The first request from this id on whose message was put into the queue.
pub(super) fn enqueued_request(shop: &Connection, from: i64) -> rusqlite::Result<Option<RequestRow>> {
    let sql = "select * from request where id >= ?1 and result = ?2 order by id limit 1";
    shop.query_row(sql, params![from, ENQUEUED], request).optional()
}

fn request(row: &Row<'_>) -> rusqlite::Result<RequestRow> {
    let result: String = row.get("result")?;
    let is_enqueued = result == ENQUEUED;
    Ok(RequestRow { id: row.get("id")?, operation: row.get("operation")?, order: order(row)?, is_enqueued })
}

/// All charges, in the order of their ids.
pub(super) fn charges(shop: &Connection) -> rusqlite::Result<Vec<ChargeRow>> {
    rows(shop, "select * from charge order by id", |row| {
        let (id, operation, account) = (row.get("id")?, row.get("operation")?, row.get("account")?);
        Ok(ChargeRow { id, operation, order: order(row)?, account, cause: cause(row)? })
    })
}

/// All receipts, in the order of their ids.
pub(super) fn receipts(post: &Connection) -> rusqlite::Result<Vec<ReceiptRow>> {
    rows(post, "select * from receipt order by id", |row| {
        let (id, charge, account, cause) = (row.get("id")?, row.get("charge")?, row.get("account")?, cause(row)?);
        Ok(ReceiptRow { id, charge, order: order(row)?, account, cause })
    })
}

/// The number of rows that this part of a statement names.
pub(super) fn count(connection: &Connection, rows: &str) -> rusqlite::Result<u64> {
    let count: i64 = connection.query_row(&format!("select count(*) from {rows}"), [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], |row| read(row))?.collect()
}

fn order(row: &Row<'_>) -> rusqlite::Result<PaymentOrder> {
    let cents: i64 = row.get("amount_cents")?;
    Ok(PaymentOrder { payment: row.get("payment")?, amount_cents: cents.unsigned_abs(), nonce: row.get("nonce")? })
}

fn cause(row: &Row<'_>) -> rusqlite::Result<Cause> {
    row.get::<_, String>("cause").map(|name| Cause::from_name(&name))
}

fn cents(order: &PaymentOrder) -> i64 {
    i64::try_from(order.amount_cents).unwrap_or(i64::MAX)
}
