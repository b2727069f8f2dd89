use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::RecordKey;
use crate::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use crate::record::{Phase, State, Timestamp, Token};
use crate::runtime::Runtime;
use crate::store::{
    Chunk, Finding, Inserted, Inspect, Scan, ScanPosition, Severity, Store, StoredRecord, Swapped, is_unchanged,
    observe,
};

/// Settings of the [`Memory`] store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySettings {
    /// About how many bytes of records to keep. Beyond it a begin fails with `Full`. Default: 1 GiB.
    pub max_bytes: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

impl MemorySettings {
    /// Keeps at most this many bytes of records.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }
}

/// A store in this process's memory. It is the fastest store, and it loses every record when the process ends.
///
/// Its clock is the runtime's wall clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::runtime::Tokio;
/// use hapax::store::{Memory, MemorySettings};
///
/// let store = Memory::new();
/// let small = Memory::with(Arc::new(Tokio::current()), MemorySettings::default().max_bytes(64 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    runtime: Arc<dyn Runtime>,
    settings: MemorySettings,
    used: AtomicUsize,
    token_high_water: AtomicU64,
}

const SHARDS: usize = 64;

/// How many expired records a begin removes: more than it adds, so that expired records do not accumulate.
const SWEPT_BY_A_BEGIN: usize = 2;

/// The memory of a record without its answer: its slot in the map, which is about half full, and its entry in the
/// expiries.
const RECORD_BYTES: usize = 2 * (size_of::<(RecordKey, StoredRecord)>() + size_of::<(Timestamp, RecordKey)>());

impl Memory {
    /// An empty store with the default settings, on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    #[expect(clippy::new_without_default, reason = "a default value that needs a running runtime would surprise")]
    pub fn new() -> Self {
        Self::with(Arc::new(crate::runtime::Tokio::current()), MemorySettings::default())
    }

    /// An empty store with these settings, on the clock of this runtime.
    pub fn with(runtime: Arc<dyn Runtime>, settings: MemorySettings) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, runtime, settings, used: AtomicUsize::new(0), token_high_water: AtomicU64::new(0) }
    }

    fn shard(&self, rk: &RecordKey) -> MutexGuard<'_, Shard> {
        self.shards[shard_number(rk)].lock()
    }

    fn token_high_water(&self) -> Token {
        Token(self.token_high_water.load(Ordering::Acquire))
    }

    fn write(&self, shard: &mut Shard, rk: &RecordKey, now: Timestamp, change: &Change) {
        if !(Mutant::MarkByBeginAlone.is_on() && change.record.state.holding().is_none_or(|held| held.attempt > 1)) {
            self.token_high_water.fetch_max(change.record.token.0, Ordering::AcqRel);
        }
        let stored = StoredRecord::at(now, change);
        self.used.fetch_add(size(&stored), Ordering::Relaxed);
        let before = shard.put(rk, stored);
        self.used.fetch_sub(before.as_ref().map_or(0, size), Ordering::Relaxed);
    }

    /// Lets the machine decide and writes its change, under one lock of the shard.
    fn decide<R>(&self, rk: &RecordKey, judge: impl FnOnce(&Observed) -> Decision<R>) -> R {
        let mut shard = self.shard(rk);
        let now = self.runtime.wall_now();
        match judge(&observe(shard.slots.get(rk), now, self.token_high_water())) {
            Decision::Reply(reply) => reply,
            Decision::Change(change, reply) => {
                self.write(&mut shard, rk, now, &change);
                reply
            }
        }
    }

    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp, limit: usize) -> usize {
        let mut swept = 0;
        while swept < limit {
            let Some(removed) = shard.remove_expired(now) else {
                break;
            };
            self.used.fetch_sub(size(&removed), Ordering::Relaxed);
            swept += 1;
        }
        swept
    }
}

#[async_trait]
impl Store for Memory {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        let mut shard = self.shard(&rk);
        let now = self.runtime.wall_now();
        // Before the look-up: the swept records may make the room that this begin needs.
        self.sweep_shard(&mut shard, now, SWEPT_BY_A_BEGIN);
        let seen = observe(shard.slots.get(&rk), now, self.token_high_water());
        if seen.live().is_some() {
            return Ok(Inserted::Found(seen));
        }
        // Only begins are refused: clause 9 of the contract demands room for every completion.
        if self.used.load(Ordering::Relaxed) + RECORD_BYTES > self.settings.max_bytes {
            return Err(Error::new(ErrorKind::Full, "the memory store is full"));
        }
        let (change, grant) = machine::first_grant(ask, &seen);
        self.write(&mut shard, &rk, now, &change);
        Ok(Inserted::Granted(grant))
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        Ok(self.decide(rk, |seen| machine::renew(seen, claim)))
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        Ok(self.decide(rk, |seen| machine::complete(seen, ask)))
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        // The clock is read under the lock: an instant before the last write would lengthen its lease and life.
        let shard = self.shard(rk);
        let now = self.runtime.wall_now();
        Ok(observe(shard.slots.get(rk), now, self.token_high_water()))
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let mut shard = self.shard(rk);
        let now = self.runtime.wall_now();
        if !is_unchanged(shard.slots.get(rk), seen, now) {
            return Ok(Swapped::Changed);
        }
        self.write(&mut shard, rk, now, next);
        Ok(Swapped::Yes)
    }
}

#[async_trait]
impl Inspect for Memory {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let now = self.runtime.wall_now();
        let mut swept = 0;
        for shard in &self.shards {
            swept += self.sweep_shard(&mut shard.lock(), now, limit - swept);
        }
        Ok(swept)
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        let after = ask.position().map(read_position).transpose()?;
        let first = after.map_or(0, |rk| shard_number(&rk));
        let mut chunk = Chunk::default();
        for (number, shard) in self.shards.iter().enumerate().skip(first) {
            let shard = shard.lock();
            let now = self.runtime.wall_now();
            // In the order of the keys, so that the next chunk knows where to continue.
            let is_next = |rk: &&RecordKey| number != first || after.is_none_or(|after| **rk > after);
            let mut keys: Vec<_> = shard.slots.keys().filter(is_next).copied().collect();
            keys.sort_unstable();
            let has_more = keys.len() > ask.limit();
            keys.truncate(ask.limit());
            let records = keys.iter().filter_map(|rk| ask.admit_stored(*rk, shard.slots.get(rk)?, now));
            chunk.records.extend(records);
            if has_more || (!keys.is_empty() && number + 1 < SHARDS) {
                chunk.next = keys.last().map(|rk| ScanPosition(Bytes::copy_from_slice(rk.as_bytes())));
                break;
            }
        }
        Ok(chunk)
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let mut shard = self.shard(rk);
        let now = self.runtime.wall_now();
        if seen.live().is_none() || !is_unchanged(shard.slots.get(rk), seen, now) {
            return Ok(Swapped::Changed);
        }
        // The mark is as large as every token that was written.
        let removed = shard.remove(rk);
        self.used.fetch_sub(removed.as_ref().map_or(0, size), Ordering::Relaxed);
        Ok(Swapped::Yes)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let message =
            "the memory store forgets every key when this process ends; name a durable store to keep them".into();
        Ok(vec![Finding { severity: Severity::Warn, message }])
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        let now = self.runtime.wall_now();
        let is_unknown = |stored: &&StoredRecord| {
            matches!(stored.record.state, State::Open(Phase::Indeterminate, _)) && !stored.is_expired(now)
        };
        let count = |shard: &Mutex<Shard>| shard.lock().slots.values().filter(is_unknown).count();
        let unknown: usize = self.shards.iter().map(count).sum();
        Ok(u64::try_from(unknown).ok())
    }
}

#[derive(Debug, Default)]
struct Shard {
    // With the standard map's keyed hash: a client can search for record keys of a plain identity that collide.
    slots: HashMap<RecordKey, StoredRecord>,
    expiries: BTreeSet<(Timestamp, RecordKey)>,
}

impl Shard {
    fn put(&mut self, rk: &RecordKey, stored: StoredRecord) -> Option<StoredRecord> {
        // Both maps change under the lock of the shard, so each record has exactly one entry in `expiries`.
        self.expiries.insert((stored.expires_at, *rk));
        let new_expiry = stored.expires_at;
        let before = self.slots.insert(*rk, stored);
        if let Some(before) = before.as_ref().filter(|before| before.expires_at != new_expiry) {
            self.expiries.remove(&(before.expires_at, *rk));
        }
        before
    }

    fn remove(&mut self, rk: &RecordKey) -> Option<StoredRecord> {
        let removed = self.slots.remove(rk)?;
        self.expiries.remove(&(removed.expires_at, *rk));
        Some(removed)
    }

    fn remove_expired(&mut self, now: Timestamp) -> Option<StoredRecord> {
        let (expires, rk) = *self.expiries.first()?;
        if expires > now {
            return None;
        }
        self.expiries.pop_first();
        self.slots.remove(&rk)
    }
}

fn shard_number(rk: &RecordKey) -> usize {
    usize::from(rk.as_bytes()[15]) % SHARDS
}

/// The key after which a chunk begins.
fn read_position(ScanPosition(bytes): &ScanPosition) -> Result<RecordKey> {
    let bytes = <[u8; 16]>::try_from(&bytes[..]);
    bytes.map(RecordKey::from_bytes).map_err(|_| Error::new(ErrorKind::Invalid, "this position is of another store"))
}

fn size(stored: &StoredRecord) -> usize {
    let answer = match &stored.record.state {
        State::Completed(completion) => completion.answer.len(),
        State::Open(..) => 0,
    };
    RECORD_BYTES + answer
}
