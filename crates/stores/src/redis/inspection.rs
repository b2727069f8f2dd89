//! What operators see of the records and remove from them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::machine::Observed;
use hapax_core::store::{Chunk, Scan, ScanPosition, Store, Swapped};
use hapax_core::{ErrorKind, RecordKey, Result, State, Timestamp};
use redis::{Value, cmd};

use super::Redis;
use super::call_error::RedisCallError;
use super::link::Link;
use super::script::PURGE;
use super::value::{self, RedisKey, ScriptReply};

/// Reads a part of the keys by `SCAN`, and each record in a call of its own, so that no other call waits for long.
pub(super) async fn scan(store: &Redis, link: &Link, ask: &Scan) -> Result<Chunk> {
    let cursor = ask.position().map_or(&b"0"[..], |ScanPosition(cursor)| cursor);
    let (next, keys) = keys(link, cursor, ask.limit()).await?;
    let mut chunk = records(store, ask, &keys).await?;
    chunk.next = next.map(ScanPosition);
    Ok(chunk)
}

/// Where a server continues, and the keys of records that it named.
pub(super) type FoundKeys = (Option<Bytes>, Vec<RecordKey>);

/// Asks a server for the keys from this cursor on.
pub(super) async fn keys(link: &Link, cursor: &[u8], limit: usize) -> Result<FoundKeys, RedisCallError> {
    let mut command = cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(RedisKey::PATTERN).arg("COUNT").arg(limit);
    link.call(&command, parse_scan).await
}

/// Reads the records of these keys.
pub(super) async fn records(store: &Redis, ask: &Scan, keys: &[RecordKey]) -> Result<Chunk> {
    let mut chunk = Chunk::default();
    // A server may answer with many more keys than asked for.
    for keys in keys.chunks(ask.limit()) {
        for (rk, seen) in keys.iter().zip(join_all(keys.iter().map(|rk| store.read(rk))).await) {
            match seen {
                Ok(seen) => {
                    let idle = idle(&seen);
                    chunk.records.extend(ask.admit(*rk, seen, idle));
                }
                Err(error) if error.kind() == ErrorKind::Damaged => chunk.damaged.push(*rk),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(chunk)
}

/// Removes the record if it is still the observed one.
pub(super) async fn purge(store: &Redis, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
    let Some(record) = seen.live() else { return Ok(Swapped::Changed) };
    let arguments: [&[u8]; 2] = [&record.encode(rk), &value::expiry_argument(seen)];
    let judge = |reply: ScriptReply| match &reply.outcome[..] {
        b"YES" => Ok(Swapped::Yes),
        b"CHANGED" => Ok(Swapped::Changed),
        _ => Err(value::unexpected_reply()),
    };
    PURGE.run((&store.route(rk), &RedisKey::of(rk)), &arguments, judge).await
}

/// An open record tells by its life when it was written or renewed. A completed record tells only by its token about
/// when it was granted.
fn idle(seen: &Observed) -> Duration {
    let Some(record) = &seen.record else { return Duration::ZERO };
    match &record.state {
        State::Open(_, holding) => Duration::from(holding.lifetime).saturating_sub(seen.life_left),
        State::Completed(_) => seen.now.since(Timestamp(record.token.0)),
    }
}

/// Reads the reply of `SCAN`: where to continue, and the keys of records.
fn parse_scan(reply: Value) -> Result<FoundKeys> {
    let Value::Array(parts) = reply else { return Err(value::unexpected_reply()) };
    let Ok([cursor, Value::Array(keys)]) = <[Value; 2]>::try_from(parts) else {
        return Err(value::unexpected_reply());
    };
    let cursor = value::reply_bytes(cursor)?.ok_or_else(value::unexpected_reply)?;
    let next = (cursor != b"0"[..]).then_some(cursor);
    let mut records = Vec::new();
    for key in keys {
        let key: Bytes = value::reply_bytes(key)?.ok_or_else(value::unexpected_reply)?;
        records.extend(RedisKey::record_key(&key));
    }
    Ok((next, records))
}
