//! Records in Redis or Valkey, one key each, on one server or on the nodes of a cluster. Only the clock of the server
//! that has a record decides when its lease or the record expires.
//!
//! ```text
//! begin     SET record NX GET PX lifetime, GETRANGE header    sent together, one round trip
//! renew     renew.lua                                         one round trip
//! complete  complete.lua                                      one round trip
//! swap      swap.lua                                          one round trip
//! read      read.lua                                          one round trip
//! ```
//!
//! - A begin is granted if the header that GETRANGE returns is the new one. A nil reply to SET alone does not prove it.
//!   If an open record was there, `read.lua` reads it with its remaining lease, in a second round trip.
//! - `complete.lua` decides the rows C1, C2 and C6 of the protocol. In every other case it returns the stored record.
//!   The machine decides about that record; if it must be replaced, the caller reads and swaps.
//! - A value is the record as [`Record::encode`] writes it. It does not contain the time at which the lease began: the
//!   remaining lease follows from the key's time to live and the lifetime in the header.
//! - A call whose connection breaks after it was sent fails with `Unknown`. A call whose future is dropped may still be
//!   applied.
//! - The store never repeats a call that may have been applied. It sends a script again in full if the server does not
//!   know the script, and a begin again if the record vanished before it was read. A call that a node of a cluster did
//!   not run goes to the node that has the key now.
//! - With `wait=N:MS` in the URL, one `WAIT` goes behind the calls that are sent together. If it counts too few
//!   replicas, the outcome of their writes is unknown. What a call found counts at once, whoever wrote it; only a
//!   completion that finds its own answer writes it again, because the confirmation of the first may have failed.
//! - The first token of a record comes from this host's clock, if that is within a second of the server's clock.

mod amnesia;
mod call_error;
mod checks;
mod cluster;
mod dead;
mod inspection;
mod link;
mod route;
mod script;
mod sentinel;
mod server_info;
mod server_monitor;
mod url;
mod value;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Store, Swapped};
use hapax_core::{Error, ErrorKind, Record, RecordKey, Result, Seconds, State};
use redis::pipe;

use call_error::RedisCallError;
use link::Confirmation;
use route::{RedisNodes, Route};
use script::{COMPLETE, CONFIRM, READ, RENEW, SWAP};
use value::RedisKey;
use value::ScriptReply;

pub use dead::RedisDeadLetters;
pub use url::RedisUrl;

/// A store on a Redis server, 7.0 or later, on any Valkey, or on a cluster of either.
///
/// Share it behind an `Arc`: all calls use one connection to each server, or as many as the URL says.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::{Gate, Identity, Inspect, Key, Scope, Settings};
/// use hapax::stores::Redis;
///
/// let store = Arc::new(Redis::connect("redis://127.0.0.1")?);
/// // At start, and once a minute: the server may evict records, or may have lost them.
/// for finding in store.check().await? {
///     println!("{:?}: {}", finding.severity, finding.message);
/// }
/// let gate = Gate::builder(store, Settings::default()).build()?;
/// let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// gate.run(call, |_| async { Ok(String::from("charged")) }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Redis {
    nodes: RedisNodes,
}

/// How many times a begin is tried, if each time the record that it found vanishes before it is read.
const TRIES: usize = 8;

impl Redis {
    /// Creates a store on the server with this URL, on the current tokio runtime. It connects at its first call, so a
    /// server that is down is no error here.
    ///
    /// # Errors
    /// - `Invalid` if the text is not the URL of a Redis server.
    /// - `Unusable` if a file in the URL cannot be read, or contains no certificate.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn connect(url: &str) -> Result<Self> {
        Self::with(&url.parse()?, Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// Creates a store on the server with this URL, on this runtime.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read, or contains no certificate.
    pub fn with(url: &RedisUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        url.client()?;
        Ok(Self { nodes: RedisNodes::new(url, runtime) })
    }

    /// The route to this record. All calls for one record take the same connection of a server.
    fn route(&self, rk: &RecordKey) -> Route<'_> {
        self.nodes.route(rk)
    }

    /// Waits until the replicas have the answer that an earlier call recorded.
    async fn confirm(&self, rk: &RecordKey) -> Result<()> {
        let unknown = || Error::new(ErrorKind::Unknown, "the answer is recorded, but it may be lost");
        match self.write_again(rk).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(unknown()),
            Err(error) if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Damaged) => Err(error),
            // The call that was to confirm it failed. The answer is there all the same.
            Err(error) => Err(unknown().caused_by(error)),
        }
    }

    /// Writes the record as it is. False if it has changed meanwhile.
    async fn write_again(&self, rk: &RecordKey) -> Result<bool> {
        let (route, name) = (self.route(rk), RedisKey::of(rk));
        let stored = READ.run((&route, &name), &[], |reply| Ok(reply.stored)).await?;
        let judge = |reply: ScriptReply| match &reply.outcome[..] {
            b"YES" => Ok(true),
            b"CHANGED" => Ok(false),
            _ => Err(value::unexpected_reply()),
        };
        CONFIRM.run((&route, &name), &[&stored[..]], judge).await
    }

    /// Inserts the record, or returns the one that is already stored.
    async fn insert(&self, rk: &RecordKey, change: &Change) -> Result<Option<Bytes>, RedisCallError> {
        let (route, name, record) = (self.route(rk), RedisKey::of(rk), change.record.encode(rk));
        let mut commands = pipe();
        let set = commands.cmd("SET").arg(name.as_bytes()).arg(&record[..]);
        set.arg("NX").arg("GET").arg("PX").arg(value::lifetime_argument(change));
        // An open record is its header.
        commands.cmd("GETRANGE").arg(name.as_bytes()).arg(0).arg(record.len() - 1);
        let judge = |replies, confirmation: &Confirmation| {
            let found = value::parse_insert(replies, &record)?;
            if found.is_none() { confirmation.check().map(|()| None) } else { Ok(found) }
        };
        route.write_pair(&commands, judge).await
    }
}

#[async_trait]
impl Store for Redis {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        for _ in 0..TRIES {
            let now = self.route(&rk).token_time().await?;
            let (change, grant) = machine::first_grant(ask, &value::observe_absent(now));
            let write_refusal = match self.insert(&rk, &change).await {
                Ok(None) => return Ok(Inserted::Granted(grant)),
                Ok(Some(stored)) => match Record::decode(&rk, &stored) {
                    // A completed record has no lease, so it needs no second round trip.
                    Ok(record) if matches!(record.state, State::Completed(_)) => {
                        return Ok(Inserted::Found(value::observe_completed(record, now)));
                    }
                    // `read.lua` follows in both cases: for the remaining lease of an open record, and for a value that
                    // cannot be decoded. Such a value may be the reply to another call, and a reply of `read.lua` has
                    // the number of its call.
                    Ok(_) | Err(_) => None,
                },
                // The server refused before it read the record, and reads still work: an existing record can be
                // returned.
                Err(error) if error.is_write_refusal() => Some(Error::from(error)),
                Err(error) => return Err(error.into()),
            };
            let seen = self.read(&rk).await?;
            match (seen.live(), write_refusal) {
                (Some(_), _) => return Ok(Inserted::Found(seen)),
                (None, Some(error)) => return Err(error),
                (None, None) => {}
            }
        }
        Err(Error::new(ErrorKind::NotApplied, "8 times in a row, a record was found but gone when read; try again"))
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (route, name) = (self.route(rk), RedisKey::of(rk));
        // Decode the record even where it is not returned: a damaged record must be an error, not a renewal.
        let judge = |reply: ScriptReply| match &reply.outcome[..] {
            b"YES" => reply.record(rk).map(|_| Renewed::Yes),
            b"LOST" => reply.record(rk).map(|_| Renewed::Lost),
            b"GONE" => Ok(Renewed::Gone),
            _ => Err(value::unexpected_reply()),
        };
        RENEW.run((&route, &name), &[&claim.token.0.to_be_bytes(), &claim.owner.0], judge).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (route, name) = (self.route(rk), RedisKey::of(rk));
        let absent = value::observe_absent(self.nodes.wall_now());
        // The record that a completion writes does not depend on what is stored, so the machine is asked about an
        // absent record. With an age of zero the machine always gives a change. The server accepts no lifetime of zero.
        let young = Complete { age: Duration::ZERO, retention: Seconds(ask.retention.0.max(1)), ..ask.clone() };
        let Decision::Change(change, _) = machine::complete(&absent, &young) else {
            return Ok(Completed::Gone);
        };
        let may_recreate = matches!(machine::complete(&absent, ask), Decision::Change(..));
        let payload = [&[ask.fingerprint.rule().0], &ask.fingerprint.as_bytes()[..]].concat();
        let arguments: [&[u8]; 6] = [
            &ask.claim.token.0.to_be_bytes(),
            &payload,
            &ask.claim.owner.0,
            &change.record.encode(rk),
            &value::lifetime_argument(&change),
            if may_recreate { b"1" } else { b"0" },
        ];
        let judge = |reply: ScriptReply| match &reply.outcome[..] {
            b"DONE" => Ok(Completed::Done),
            b"RECREATED" => Ok(Completed::Recreated),
            b"GONE" => Ok(Completed::Gone),
            b"FOUND" => {
                let found = reply.record(rk)?;
                let seen = value::observe_completed(found.clone(), absent.now);
                Ok(match machine::complete(&seen, ask) {
                    Decision::Reply(completed) => completed,
                    // The caller reads and swaps (clause 8 of the contract).
                    Decision::Change(..) => Completed::Lost(found),
                })
            }
            _ => Err(value::unexpected_reply()),
        };
        let completed = COMPLETE.run((&route, &name), &arguments, judge).await?;
        if matches!(completed, Completed::Already) && self.nodes.confirmation().is_some() {
            self.confirm(rk).await?;
        }
        Ok(completed)
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let (route, name) = (self.route(rk), RedisKey::of(rk));
        READ.run((&route, &name), &[], |reply| value::parse_read(rk, &reply)).await
    }

    /// Returns a store with a connection of its own to each server.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self { nodes: self.nodes.dedicated() }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (route, name) = (self.route(rk), RedisKey::of(rk));
        let observed = seen.live().map(|record| record.encode(rk)).unwrap_or_default();
        let arguments: [&[u8]; 4] =
            [&observed, &value::expiry_argument(seen), &next.record.encode(rk), &value::lifetime_argument(next)];
        let judge = |reply: ScriptReply| match &reply.outcome[..] {
            b"YES" => Ok(Swapped::Yes),
            b"ABSENT" => Ok(Swapped::Changed),
            b"CHANGED" => reply.record(rk).map(|_| Swapped::Changed),
            _ => Err(value::unexpected_reply()),
        };
        SWAP.run((&route, &name), &arguments, judge).await
    }
}

#[async_trait]
impl Inspect for Redis {
    /// Removes nothing: the server itself removes expired keys.
    async fn sweep(&self, _limit: usize) -> Result<usize> {
        Ok(0)
    }

    /// Goes through the keys of each server by `SCAN`; the user needs that permission, and in a cluster
    /// `+cluster|nodes`.
    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        match &self.nodes {
            RedisNodes::Single(server) => inspection::scan(self, &server.links[0], ask).await,
            RedisNodes::Cluster(cluster) => cluster::scan::scan(self, cluster, ask).await,
        }
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        inspection::purge(self, rk, seen).await
    }

    /// Checks each server's version, role and settings, its clock, and whether it was replaced or lost its data. In a
    /// cluster each finding names its node.
    async fn check(&self) -> Result<Vec<Finding>> {
        match &self.nodes {
            RedisNodes::Single(server) => server.findings().await,
            RedisNodes::Cluster(cluster) => cluster::checks::findings(cluster).await,
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("connections", &self.nodes.connections()).finish_non_exhaustive()
    }
}
