//! Records in Redis or Valkey, one key each. The server's clock is the only clock.
//!
//! ```text
//! begin     SET record NX GET PX lifetime    one native command; what is found and not yet answered is read in a second trip
//! renew     renew.lua
//! complete  complete.lua                     one script and one trip each; any row that a script cannot decide is the machine's
//! swap      swap.lua
//! read      read.lua
//! ```
//!
//! A value is the record as [`Record::encode`] writes it, without a clock in it: the lease is the age of the key's time to live under
//! the lifetime in its own header. A client whose call was given up, or whose connection broke, is told *unknown* and nothing is sent
//! again on its behalf.

mod checks;
mod failure;
mod link;
mod script;
mod server;
mod url;
mod value;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Finding, Inserted, Inspect, Severity, Store, Swapped};
use hapax_core::{Error, ErrorKind, Record, RecordKey, Result, Seconds, State, Timestamp};
use redis::cmd;

use checks::Info;
use failure::Failure;
use link::Link;
use script::{COMPLETE, READ, RENEW, Reply, SWAP};
use server::Server;
use value::RecordName;

pub use url::RedisUrl;

/// A store on a Redis server, 7.0 or later, or on any Valkey.
///
/// Cheap to share behind an `Arc`: all calls travel over one connection, or as many as its URL says.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax_core::runtime::Tokio;
/// use hapax_core::{Gate, Identity, Inspect, Key, Scope, Settings};
/// use hapax_stores::Redis;
///
/// let store = Arc::new(Redis::open(&"redis://127.0.0.1".parse()?, Arc::new(Tokio::current()))?);
/// // At start, and once a minute: it may evict, or have forgotten.
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
    url: Arc<RedisUrl>,
    server: Arc<Server>,
    links: Vec<Link>,
}

/// How often a record may vanish between two looks of a begin.
const TRIES: usize = 8;

impl Redis {
    /// A store on the server with this URL. It connects when it is first needed: a server that is down is no error yet.
    ///
    /// # Errors
    /// `Unusable` for files named by the URL that cannot be read, and certificates that are none.
    pub fn open(url: &RedisUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        url.client()?;
        Ok(Self::over(Arc::new(url.clone()), Arc::new(Server::new(runtime)), url.connections()))
    }

    fn over(url: Arc<RedisUrl>, server: Arc<Server>, connections: usize) -> Self {
        let links = (0..connections).map(|_| Link::new(Arc::clone(&url), Arc::clone(&server))).collect();
        Self { url, server, links }
    }

    /// The calls for one record travel over one connection.
    fn link(&self, rk: &RecordKey) -> &Link {
        &self.links[usize::from(rk.as_bytes()[15]) % self.links.len()]
    }

    /// The instant that a first token is drawn from: our clock, or the server's where they are apart.
    async fn now(&self, link: &Link) -> Result<Timestamp> {
        if !self.server.is_known() {
            link.ready().await?;
        }
        if self.server.is_known() && !self.server.is_apart() {
            return Ok(self.server.wall_now());
        }
        Ok(link.call(&cmd("TIME"), value::time).await?)
    }

    /// Inserts the record, or says what stands there.
    async fn insert(&self, rk: &RecordKey, change: &Change) -> Result<Option<Bytes>, Failure> {
        let (link, name, record) = (self.link(rk), RecordName::of(rk), change.record.encode(rk));
        let mut set = cmd("SET");
        set.arg(name.as_bytes()).arg(&record[..]).arg("NX").arg("GET").arg("PX").arg(value::lifetime(change));
        link.call(&set, value::text).await
    }
}

#[async_trait]
impl Store for Redis {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        for _ in 0..TRIES {
            let now = self.now(self.link(&rk)).await?;
            let (change, grant) = machine::first_grant(ask, &value::nothing(now));
            let shut = match self.insert(&rk, &change).await {
                Ok(None) => return Ok(Inserted::Granted(grant)),
                Ok(Some(there)) => match Record::decode(&rk, &there) {
                    Ok(record) if matches!(record.state, State::Completed(_)) => {
                        return Ok(Inserted::Found(value::answered(record, now)));
                    }
                    // What cannot be read is looked at once more by a script, whose reply says which record it is.
                    Ok(_) | Err(_) => None,
                },
                // Such a server refuses before it looks, and what is there can still be shown.
                Err(failure) if failure.is_shut() => Some(Error::from(failure)),
                Err(failure) => return Err(failure.into()),
            };
            let seen = self.read(&rk).await?;
            match (seen.live(), shut) {
                (Some(_), _) => return Ok(Inserted::Found(seen)),
                (None, Some(shut)) => return Err(shut),
                (None, None) => {}
            }
        }
        Err(Error::new(ErrorKind::NotApplied, "the record vanished under each of 8 looks; try again"))
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (link, name) = (self.link(rk), RecordName::of(rk));
        let judge = |reply: Reply| match &reply.word[..] {
            b"YES" => reply.record(rk).map(|_| Renewed::Yes),
            b"LOST" => reply.record(rk).map(|_| Renewed::Lost),
            b"GONE" => Ok(Renewed::Gone),
            _ => Err(value::not_understood()),
        };
        RENEW.run((link, &name), &[&claim.token.0.to_be_bytes(), &claim.owner.0], judge).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (link, name) = (self.link(rk), RecordName::of(rk));
        let nothing = value::nothing(self.server.wall_now());
        // Whatever stands there, this is what would come of it; only where nothing does it may be too old. No key lives for no time.
        let young = Complete { age: Duration::ZERO, retention: Seconds(ask.retention.0.max(1)), ..ask.clone() };
        let Decision::Change(change, _) = machine::complete(&nothing, &young) else {
            return Ok(Completed::Gone);
        };
        let may_come_back = matches!(machine::complete(&nothing, ask), Decision::Change(..));
        let payload = [&[ask.fingerprint.rule().0], &ask.fingerprint.as_bytes()[..]].concat();
        let arguments: [&[u8]; 6] = [
            &ask.claim.token.0.to_be_bytes(),
            &payload,
            &ask.claim.owner.0,
            &change.record.encode(rk),
            &value::lifetime(&change),
            if may_come_back { b"1" } else { b"0" },
        ];
        let judge = |reply: Reply| match &reply.word[..] {
            b"DONE" => Ok(Completed::Done),
            b"RECREATED" => Ok(Completed::Recreated),
            b"GONE" => Ok(Completed::Gone),
            b"ALREADY" => reply.record(rk).map(|_| Completed::Already),
            b"FOUND" => reply.record(rk).map(Completed::Lost),
            _ => Err(value::not_understood()),
        };
        COMPLETE.run((link, &name), &arguments, judge).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let (link, name) = (self.link(rk), RecordName::of(rk));
        READ.run((link, &name), &[], |reply| value::observed(rk, &reply)).await
    }

    /// A connection of its own.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self::over(Arc::clone(&self.url), Arc::clone(&self.server), 1)))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (link, name) = (self.link(rk), RecordName::of(rk));
        let there = seen.live().map(|record| record.encode(rk)).unwrap_or_default();
        let arguments: [&[u8]; 4] = [&there, &value::expires(seen), &next.record.encode(rk), &value::lifetime(next)];
        let judge = |reply: Reply| match &reply.word[..] {
            b"YES" => Ok(Swapped::Yes),
            b"ABSENT" => Ok(Swapped::Changed),
            b"CHANGED" => reply.record(rk).map(|_| Swapped::Changed),
            _ => Err(value::not_understood()),
        };
        SWAP.run((link, &name), &arguments, judge).await
    }
}

impl Reply {
    /// What stands there, if it is this record's: a header is enough to tell.
    fn record(&self, rk: &RecordKey) -> Result<Record> {
        Record::decode(rk, &self.there)
    }
}

#[async_trait]
impl Inspect for Redis {
    /// Nothing is left to remove: the server lets its keys expire by itself.
    async fn sweep(&self, _limit: usize) -> Result<usize> {
        Ok(0)
    }

    /// Asks the server what it is and how it is set, whether its clock is ours, and whether it is still the one that it was and
    /// remembers.
    async fn check(&self) -> Result<Vec<Finding>> {
        let link = &self.links[0];
        link.greet().await?;
        let info = link.call(&cmd("INFO"), value::text).await?.unwrap_or_default();
        let mut findings = Info::new(&String::from_utf8_lossy(&info)).findings();
        let mut warn = |message: &str| findings.push(Finding { severity: Severity::Warn, message: message.into() });
        // Each time in other words, so that none is taken for what was told before.
        if let Some(times) = self.server.forgot.untold() {
            warn(&format!(
                "the server has lost records since it was last looked at; what they stand for may run again \
                 (seen so often by this process: {times})"
            ));
        }
        if let Some(times) = self.server.changed.untold() {
            warn(&format!(
                "another process of the server answers than before: after a restart it may lack what its log did not have yet, \
                 and a replica that took over may lack what was confirmed last (seen so often by this process: {times})"
            ));
        }
        if let Some(obstacle) = self.server.obstacle() {
            warn(obstacle);
        }
        if self.server.is_apart() {
            warn("the server's clock and this host's are more than a second apart; each begin asks for the time first");
        }
        Ok(findings)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("connections", &self.links.len()).finish_non_exhaustive()
    }
}
