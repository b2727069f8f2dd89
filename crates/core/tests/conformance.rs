//! The conformance suite against the memory store, and against a store of encoded records.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{
    Chunk, Finding, Inserted, Inspect, Memory, MemorySettings, Scan, StoredRecord, Swapped, is_unchanged, observe,
};
use hapax_core::{Record, RecordKey, Result, Store, Timestamp, Token};
use hapax_testkit::{Backend, Capability, ClockStep, ManualClock, Setup, StoredPart};
use parking_lot::Mutex;

fn main() -> ExitCode {
    let memory = Backend::new("memory", || async { Box::new(MemorySetup::new()) as Box<dyn Setup> });
    let values = Backend::new("values", || async { Box::new(ValuesSetup::new()) as Box<dyn Setup> });
    hapax_testkit::main(&[
        memory.lacking(&[(Capability::StoredForm, "the memory store keeps records unencoded")]),
        values.lacking(&[(Capability::RoomToComplete, "it is never full")]),
    ])
}

struct MemorySetup {
    clock: Arc<ManualClock>,
    store: Arc<Memory>,
}

impl MemorySetup {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let settings = MemorySettings::default().max_bytes(8 << 20);
        Self { store: Arc::new(Memory::with(Arc::clone(&clock) as _, settings)), clock }
    }
}

#[async_trait]
impl Setup for MemorySetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the memory store answers");
        self.clock.forward(seen.lease_left);
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the memory store answers");
        self.clock.forward(seen.life_left);
    }

    async fn step_clock(&self, step: ClockStep) {
        match step {
            ClockStep::Forward(by) => self.clock.forward(by),
            ClockStep::Back(by) => self.clock.back(by),
        }
    }

    async fn corrupt(&self, _rk: &RecordKey, _part: StoredPart) {
        unreachable!("declared as lacking");
    }

    async fn put_golden(&self) {
        unreachable!("declared as lacking");
    }
}

/// The simplest store: each record as one encoded value, and one lock around every step.
#[derive(Debug)]
struct Values {
    clock: Arc<ManualClock>,
    records: Mutex<EncodedRecords>,
}

#[derive(Debug, Default)]
struct EncodedRecords {
    values: HashMap<RecordKey, EncodedRecord>,
    token_high_water: Token,
}

#[derive(Debug)]
struct EncodedRecord {
    bytes: Bytes,
    armed_at: Timestamp,
    expires_at: Timestamp,
}

impl EncodedRecords {
    fn find(&self, rk: &RecordKey) -> Result<Option<StoredRecord>> {
        let Some(value) = self.values.get(rk) else {
            return Ok(None);
        };
        let record = Record::decode(rk, &value.bytes)?;
        Ok(Some(StoredRecord { record, armed_at: value.armed_at, expires_at: value.expires_at }))
    }

    fn write(&mut self, rk: &RecordKey, now: Timestamp, change: &Change) {
        self.token_high_water = self.token_high_water.max(change.record.token);
        let stored = StoredRecord::at(now, change);
        let value =
            EncodedRecord { bytes: stored.record.encode(rk), armed_at: stored.armed_at, expires_at: stored.expires_at };
        self.values.insert(*rk, value);
    }
}

impl Values {
    fn step<R>(&self, rk: &RecordKey, decide: impl FnOnce(&Observed) -> Decision<R>) -> Result<R> {
        let now = self.clock.wall_now();
        let mut records = self.records.lock();
        match decide(&observe(records.find(rk)?.as_ref(), now, records.token_high_water)) {
            Decision::Reply(reply) => Ok(reply),
            Decision::Change(change, reply) => {
                records.write(rk, now, &change);
                Ok(reply)
            }
        }
    }
}

#[async_trait]
impl Store for Values {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.step(&ask.call.record_key(), |seen| {
            if seen.live().is_some() {
                return Decision::Reply(Inserted::Found(seen.clone()));
            }
            let (change, grant) = machine::first_grant(ask, seen);
            Decision::Change(change, Inserted::Granted(grant))
        })
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.step(rk, |seen| machine::renew(seen, claim))
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        // The least that the contract demands: a record under another token is left to read and swap.
        self.step(rk, |seen| match (machine::complete(seen, ask), seen.live()) {
            (Decision::Change(..), Some(other)) if other.token != ask.claim.token => {
                Decision::Reply(Completed::Lost(other.clone()))
            }
            (decision, _) => decision,
        })
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.step(rk, |seen| Decision::Reply(seen.clone()))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let now = self.clock.wall_now();
        let mut records = self.records.lock();
        if !is_unchanged(records.find(rk)?.as_ref(), seen, now) {
            return Ok(Swapped::Changed);
        }
        records.write(rk, now, next);
        Ok(Swapped::Yes)
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

#[async_trait]
impl Inspect for Values {
    async fn sweep(&self, _limit: usize) -> Result<usize> {
        let now = self.clock.wall_now();
        let mut records = self.records.lock();
        let before = records.values.len();
        records.values.retain(|_, value| value.expires_at > now);
        Ok(before - records.values.len())
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        let now = self.clock.wall_now();
        let records = self.records.lock();
        let mut chunk = Chunk::default();
        for rk in records.values.keys() {
            match records.find(rk) {
                Ok(stored) => chunk.records.extend(stored.and_then(|stored| ask.admit_stored(*rk, &stored, now))),
                Err(_) => chunk.damaged.push(*rk),
            }
        }
        Ok(chunk)
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let now = self.clock.wall_now();
        let mut records = self.records.lock();
        if seen.live().is_none() || !is_unchanged(records.find(rk)?.as_ref(), seen, now) {
            return Ok(Swapped::Changed);
        }
        records.values.remove(rk);
        Ok(Swapped::Yes)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

struct ValuesSetup(Arc<Values>);

impl ValuesSetup {
    fn new() -> Self {
        Self(Arc::new(Values { clock: Arc::new(ManualClock::new()), records: Mutex::default() }))
    }
}

/// A record in format version 1, completed in January 2027 under a token of that time.
const GOLDEN: &str =
    "0102000100066517289880006c51e1855b0d5bcd2b9aa36d6b4b23809e91e75db3ace633676f6c64656e20616e73776572";

#[async_trait]
impl Setup for ValuesSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.0) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.0.read(rk).await.expect("the store answers");
        self.0.clock.forward(seen.lease_left);
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.0.read(rk).await.expect("the store answers");
        self.0.clock.forward(seen.life_left);
    }

    async fn step_clock(&self, step: ClockStep) {
        match step {
            ClockStep::Forward(by) => self.0.clock.forward(by),
            ClockStep::Back(by) => self.0.clock.back(by),
        }
    }

    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let mut records = self.0.records.lock();
        let value = records.values.get_mut(rk).expect("there is a record to damage");
        let mut bytes = value.bytes.to_vec();
        let at = match part {
            StoredPart::Header => 10,
            StoredPart::Answer => bytes.len() - 1,
        };
        bytes[at] ^= 1;
        value.bytes = bytes.into();
    }

    async fn put_golden(&self) {
        let digit = |at: usize| u8::from_str_radix(&GOLDEN[at..at + 2], 16).expect("the golden record is hexadecimal");
        let bytes: Bytes = (0..GOLDEN.len()).step_by(2).map(digit).collect();
        let (armed_at, expires_at) = (self.0.clock.wall_now(), Timestamp(u64::MAX));
        let rk = hapax_testkit::golden_call().record_key();
        self.0.records.lock().values.insert(rk, EncodedRecord { bytes, armed_at, expires_at });
    }
}
