//! Dead letters in a stream of a Redis or Valkey server. The server's clock is the clock of their leases.
//!
//! ```text
//! hx:dead                  the stream; a repeated letter gets a new entry, and its earlier entry is deleted
//! hx:dead:ids              a hash: which entry has a letter
//! hx:dead:marks            a hash: when a letter was marked for a redrive, in microseconds
//! hx:dead:reasons          a hash: the reason of a letter, if it has changed since its entry was written
//! hx:dead:taken            a hash: until when a worker has a letter, in microseconds
//! hx:dead:marked:SOURCE    a sorted set: the marked letters of a source, by the time from which on they can be taken
//! hx:dead:confirmed        empty; written by each change that replicas confirm
//! ```
//!
//! In a cluster the names begin with `hx:{dead}` instead of `hx:dead`, so that all keys are on one node. While their
//! slot moves, a node may have some of the keys and not the others. A node refuses a call that names several of its
//! keys unless it has all of them, so the scripts that add to the set of a source name it, or look into it before they
//! write.

mod stored;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, KeptLetter, LetterChange,
    LetterWord, ListedLetter, MarkedLetter, SeenLetter,
};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use redis::{Cmd, Value, cmd};

use super::RedisUrl;
use super::call_error::RedisCallError;
use super::link::Confirmation;
use super::route::RedisNodes;
use super::url::Deployment;
use super::value;
use crate::letter::{LetterColumns, readable};

/// Dead letters on a Redis or Valkey server, in a stream. They are as durable as the server's settings make them, and
/// need memory until they are removed. A user of the server needs `~hx:*` and, besides the commands of
/// [`Redis`](super::Redis): `+xadd +xdel +xrange +hget +hset +hdel +hexists +zadd +zrem +zrangebyscore`.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::broker::DeadLetterStore;
/// use hapax::stores::RedisDeadLetters;
///
/// let letters = RedisDeadLetters::connect(&"redis://127.0.0.1".parse()?)?;
/// for letter in letters.list(None, 100).await? {
///     println!("{}: {} after {} attempts", letter.id, letter.reason.as_str(), letter.attempts);
/// }
/// # Ok(())
/// # }
/// ```
pub struct RedisDeadLetters {
    nodes: RedisNodes,
    keys: &'static [&'static str; 5],
}

const KEYS: [&str; 5] = ["hx:dead", "hx:dead:ids", "hx:dead:marks", "hx:dead:reasons", "hx:dead:taken"];
const KEYS_IN_CLUSTER: [&str; 5] =
    ["hx:{dead}", "hx:{dead}:ids", "hx:{dead}:marks", "hx:{dead}:reasons", "hx:{dead}:taken"];

/// A repeated script that finds its work done writes nothing, and a `WAIT` behind it would cover nothing: what it found
/// may be lost with the server. So it writes something else under the same tag, its last key.
const ALWAYS_WRITES: &str = "redis.call('SET', KEYS[#KEYS], '')\n";

impl RedisDeadLetters {
    /// Dead letters on the server of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read, or contains no certificate.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn connect(url: &RedisUrl) -> Result<Self> {
        Self::with(url, Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// Dead letters on the server of this URL, on this runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read, or contains no certificate.
    pub fn with(url: &RedisUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        url.client()?;
        let keys = match url.deployment() {
            Deployment::Single | Deployment::Sentinel => &KEYS,
            Deployment::Cluster => &KEYS_IN_CLUSTER,
        };
        Ok(Self { nodes: RedisNodes::new(url, runtime), keys })
    }

    /// Runs a script and returns what it replied behind the number of the call.
    async fn run(&self, script: &str, arguments: &[&[u8]]) -> Result<Vec<Value>> {
        self.run_at(None, script, arguments).await
    }

    /// As [`run`](Self::run), for a script that writes nothing.
    async fn read(&self, script: &str, arguments: &[&[u8]]) -> Result<Vec<Value>> {
        let route = self.nodes.route_to(self.keys[0].as_bytes());
        let number = route.number_call();
        let command = self.command((None, script), arguments, &number);
        Ok(route.call(&command, |reply| parts_of(reply, &number)).await?)
    }

    /// As [`run`](Self::run), with the set of a source as a sixth key.
    async fn run_at(&self, source: Option<&[u8]>, script: &str, arguments: &[&[u8]]) -> Result<Vec<Value>> {
        let route = self.nodes.route_to(self.keys[0].as_bytes());
        let number = route.number_call();
        let command = match self.nodes.confirmation() {
            None => self.command((source, script), arguments, &number),
            Some(_) => self.command((source, &[ALWAYS_WRITES, script].concat()), arguments, &number),
        };
        let judge = |reply, confirmation: &Confirmation| {
            let parts = parts_of(reply, &number).map_err(RedisCallError::Judged)?;
            confirmation.check().map(|()| parts)
        };
        Ok(route.write(&command, judge).await?)
    }

    fn command(&self, (source, script): (Option<&[u8]>, &str), arguments: &[&[u8]], number: &[u8; 8]) -> Cmd {
        let set = source.map(|source| [self.keys[0].as_bytes(), b":marked:", source].concat());
        let confirmed = script.starts_with(ALWAYS_WRITES).then(|| format!("{}:confirmed", self.keys[0]));
        let others = set.as_deref().into_iter().chain(confirmed.as_deref().map(str::as_bytes));
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| key.as_bytes()).chain(others).collect();
        let mut command = cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(&keys[..]).arg(&number[..]);
        for argument in arguments {
            command.arg(argument);
        }
        command
    }

    /// The source of a letter, if there is such a letter. It need not be one that this release can read.
    async fn source_of(&self, id: DeadLetterId) -> Result<Option<Bytes>> {
        let reply = self.read(include_str!("dead/source.lua"), &[id.as_bytes()]).await?;
        Ok(reply.into_iter().next().map(value::reply_bytes).transpose()?.flatten())
    }

    /// Frees letters only after this time. A worker that extends its lease has them until then.
    async fn move_end(&self, ids: &[DeadLetterId], by: Duration, is_taken: bool) -> Result<()> {
        let by = by.as_millis().to_string();
        let head = [by.as_bytes(), if is_taken { b"1" } else { b"0" }];
        let arguments: Vec<&[u8]> = head.into_iter().chain(ids.iter().map(|id| &id.as_bytes()[..])).collect();
        self.run(include_str!("dead/postpone.lua"), &arguments).await.map(drop)
    }

    async fn put_one(&self, letter: &DeadLetter) -> Result<()> {
        let columns = LetterColumns::of(letter);
        let arguments: [&[u8]; 6] = [
            letter.id.as_bytes(),
            letter.source.as_bytes(),
            &stored::encode(&columns),
            columns.ordering_key.as_deref().unwrap_or_default(),
            columns.position_id.as_deref().unwrap_or_default(),
            &columns.payload,
        ];
        self.run(include_str!("dead/put.lua"), &arguments).await.map(drop)
    }
}

#[async_trait]
impl DeadLetters for RedisDeadLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let mut results = Vec::new();
        // One after the other: each letter has a result of its own.
        for letter in &letters {
            results.push(self.put_one(letter).await);
        }
        results
    }
}

#[async_trait]
impl DeadLetterStore for RedisDeadLetters {
    /// Behind sentinels, the server and its replicas are checked as for records: a letter that an old master has
    /// confirmed is lost.
    async fn check(&self) -> Result<Vec<Finding>> {
        match &self.nodes {
            RedisNodes::Single(server) if server.is_behind_sentinels() => server.findings().await,
            RedisNodes::Single(_) | RedisNodes::Cluster(_) => Ok(Vec::new()),
        }
    }

    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>> {
        let after = stored::entry(after)?;
        // The server would take 0 for no limit.
        let limit = limit.max(1).to_string();
        let letters = self.read(include_str!("dead/list.lua"), &[after.as_bytes(), limit.as_bytes()]).await?;
        letters.into_iter().map(stored::listed).collect()
    }

    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>> {
        let found = self.read(include_str!("dead/find.lua"), &[id.as_bytes()]).await?;
        found.into_iter().next().map(stored::kept).transpose()
    }

    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange> {
        let (mark, reason) = (mark_digits(seen.marked_at), word.map_or("", |word| word.reason().as_str()));
        let head = [&id.as_bytes()[..], seen.written.as_bytes(), mark.as_bytes(), reason.as_bytes()];
        let replaced = word.map_or(&[][..], LetterWord::replaces).iter().map(|reason| reason.as_str().as_bytes());
        let arguments: Vec<&[u8]> = head.into_iter().chain(replaced).collect();
        let Some(source) = self.source_of(id).await? else { return Ok(LetterChange::Missing) };
        stored::change(self.run_at(Some(&source), include_str!("dead/mark.lua"), &arguments).await?)
    }

    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>> {
        let (with, without) = (DeadReason::NotDone.as_str(), DeadReason::OutcomeUnknown.as_str());
        let mark = mark_digits(Some(marked_at));
        let arguments = [&id.as_bytes()[..], mark.as_bytes(), with.as_bytes(), without.as_bytes()];
        let reply = self.run(include_str!("dead/use_up.lua"), &arguments).await?;
        let new = reply.into_iter().next().map(value::reply_bytes).transpose()?.flatten();
        new.map_or(Ok(None), |new| stored::marked_at(&new))
    }

    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange> {
        let mark = mark_digits(seen.marked_at);
        let arguments = [&id.as_bytes()[..], seen.written.as_bytes(), mark.as_bytes()];
        stored::change(self.run(include_str!("dead/remove.lua"), &arguments).await?)
    }

    fn tells_ordering_keys(&self) -> bool {
        false
    }

    async fn keys_with_letters(&self, _source: &str, _keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let message = "a stream of Redis does not tell which ordering keys have dead letters: use PostgreSQL or SQLite";
        Err(Error::new(ErrorKind::Invalid, message))
    }

    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>> {
        let (limit, millis) = (limit.to_string(), lease.as_millis().to_string());
        let arguments = [source.as_bytes(), limit.as_bytes(), millis.as_bytes()];
        let taken = self.run_at(Some(source.as_bytes()), include_str!("dead/take.lua"), &arguments).await?;
        let taken = taken.into_iter().map(stored::taken).collect::<Result<Vec<_>>>()?;
        let (marked, left_out) = readable(taken);
        if !left_out.is_empty() {
            // This release cannot read them. They count as taken by no worker, so that an operator can drop them.
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
        // With its mark: a letter that was written or marked again meanwhile stays.
        let marks: Vec<String> = redriven.iter().map(|(_, marked_at)| marked_at.0.to_string()).collect();
        let pairs = redriven.iter().zip(&marks).flat_map(|((id, _), mark)| [&id.as_bytes()[..], mark.as_bytes()]);
        self.run(include_str!("dead/finish.lua"), &pairs.collect::<Vec<_>>()).await.map(drop)
    }
}

/// The reply of a script behind the number of its call.
fn parts_of(reply: Value, number: &[u8; 8]) -> Result<Vec<Value>> {
    let Value::Array(mut parts) = reply else { return Err(value::unexpected_reply()) };
    if parts.is_empty() {
        return Err(value::unexpected_reply());
    }
    if value::reply_bytes(parts.remove(0))?.is_none_or(|replied| replied[..] != number[..]) {
        return Err(value::foreign_reply());
    }
    Ok(parts)
}

/// A mark as the server keeps it. Empty for none.
fn mark_digits(marked_at: Option<Timestamp>) -> String {
    marked_at.map_or_else(String::new, |marked_at| marked_at.0.to_string())
}

impl fmt::Debug for RedisDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisDeadLetters")
    }
}
