//! What operators see of the records and remove from them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::machine::Observed;
use hapax_core::store::{Chunk, Scan, ScanPosition, Store, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result, State, Timestamp};
use redis::{Cmd, Value, cmd, pipe};

use super::Redis;
use super::call_error::RedisCallError;
use super::link::Link;
use super::script::PURGE;
use super::server_info::ServerInfo;
use super::value::{self, RedisKey, ScriptReply};

/// Reads a part of the keys by `SCAN`, and each record in a call of its own, so that no other call waits for long.
///
/// A cursor counts only for the process that gave it: another one has its keys in another order. So the scan begins
/// again after a restart and after a failover.
pub(super) async fn scan(store: &Redis, link: &Link, ask: &Scan) -> Result<Chunk> {
    let place = ask.position().map(decode_place).transpose()?;
    let cursor = place.as_ref().map_or(START, |(_, cursor)| cursor);
    let (process, (next, keys)) = keys_of_process(link, cursor, ask.limit()).await?;
    let mut chunk = records(store, ask, &keys).await?;
    let is_other = place.is_some_and(|(before, _)| before != process);
    let next = if is_other { Some(Bytes::from_static(START)) } else { next };
    chunk.next = next.map(|cursor| ScanPosition([&process[..], &cursor].concat().into()));
    Ok(chunk)
}

const START: &[u8] = b"0";

/// The begin of a run id, which each process of a server has for itself.
type ProcessPrefix = [u8; 16];

/// Reads a position: a process, and a cursor there.
fn decode_place(ScanPosition(bytes): &ScanPosition) -> Result<(ProcessPrefix, Bytes)> {
    let (process, cursor) = bytes
        .split_first_chunk::<16>()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "this is no position of a scan of a server"))?;
    Ok((*process, Bytes::copy_from_slice(cursor)))
}

/// As [`keys`], with the process that answers.
async fn keys_of_process(
    link: &Link,
    cursor: &[u8],
    limit: usize,
) -> Result<(ProcessPrefix, FoundKeys), RedisCallError> {
    let mut commands = pipe();
    commands.cmd("INFO").arg("server").arg("replication").add_command(scan_command(cursor, limit));
    let judge = |[info, scanned]: [Value; 2]| {
        let scanned = scanned.extract_error().map_err(RedisCallError::Sent)?;
        let found = parse_scan(scanned).map_err(RedisCallError::Judged)?;
        // Where INFO is blocked, a change of the process goes unnoticed.
        let info = value::reply_bytes(info).ok().flatten().unwrap_or_default();
        let info = String::from_utf8_lossy(&info);
        let info = ServerInfo::new(&info);
        // A replica may lack keys, and names those that it has.
        if info.is_replica() {
            return Err(RedisCallError::from_replica());
        }
        let run_id = info.run_id().and_then(|id| id.as_bytes().first_chunk().copied());
        Ok((run_id.unwrap_or_default(), found))
    };
    link.read_pair(&commands, judge).await
}

/// Where a server continues, and the keys of records that it named.
pub(super) type FoundKeys = (Option<Bytes>, Vec<RecordKey>);

/// Asks a server for the keys from this cursor on.
pub(super) async fn keys(link: &Link, cursor: &[u8], limit: usize) -> Result<FoundKeys, RedisCallError> {
    link.call(&scan_command(cursor, limit), parse_scan).await
}

fn scan_command(cursor: &[u8], limit: usize) -> Cmd {
    let mut command = cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(RedisKey::PATTERN).arg("COUNT").arg(limit);
    command
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
