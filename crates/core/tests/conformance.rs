//! The suite against the memory store, and against one that keeps records in their form as one value.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{
    Finding, Inserted, Inspect, Memory, MemorySettings, StoredRecord, Swapped, is_unchanged, observe,
};
use hapax_core::{Record, RecordKey, Result, Store, Timestamp, Token};
use hapax_testkit::{Backend, Capability, ClockStep, ManualClock, Setup};

fn main() -> ExitCode {
    let memory = Backend::new("memory", || async { Box::new(MemorySetup::new()) as Box<dyn Setup> });
    let values = Backend::new("values", || async { Box::new(ValuesSetup::new()) as Box<dyn Setup> });
    hapax_testkit::main(&[
        memory.lacking(&[(Capability::StoredForm, "records lie in memory as values, in no stored form")]),
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

    async fn corrupt(&self, _rk: &RecordKey) {
        unreachable!("declared as lacking");
    }

    async fn put_golden(&self) {
        unreachable!("declared as lacking");
    }
}

/// The least that a store can be: each record as one encoded value, and one lock around every step.
#[derive(Debug)]
struct Values {
    clock: Arc<ManualClock>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    values: HashMap<RecordKey, Value>,
    mark: Token,
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    since: Timestamp,
    expires: Timestamp,
}

impl Kept {
    fn armed(&self, rk: &RecordKey) -> Result<Option<StoredRecord>> {
        let Some(value) = self.values.get(rk) else {
            return Ok(None);
        };
        let record = Record::decode(rk, &value.bytes)?;
        Ok(Some(StoredRecord { record, armed_at: value.since, expires_at: value.expires }))
    }

    fn write(&mut self, rk: &RecordKey, now: Timestamp, change: &Change) {
        self.mark = self.mark.max(change.record.token);
        let armed = StoredRecord::at(now, change);
        let value = Value { bytes: armed.record.encode(rk), since: armed.armed_at, expires: armed.expires_at };
        self.values.insert(*rk, value);
    }
}

impl Values {
    fn step<R>(&self, rk: &RecordKey, judge: impl FnOnce(&Observed) -> Decision<R>) -> Result<R> {
        let now = self.clock.wall_now();
        let mut kept = self.kept.lock().unwrap();
        match judge(&observe(kept.armed(rk)?.as_ref(), now, kept.mark)) {
            Decision::Reply(reply) => Ok(reply),
            Decision::Change(change, reply) => {
                kept.write(rk, now, &change);
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
        // No more than a store must: what stands under another token is left to a read and a swap.
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
        let mut kept = self.kept.lock().unwrap();
        if !is_unchanged(kept.armed(rk)?.as_ref(), seen, now) {
            return Ok(Swapped::Changed);
        }
        kept.write(rk, now, next);
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
        let mut kept = self.kept.lock().unwrap();
        let before = kept.values.len();
        kept.values.retain(|_, value| value.expires > now);
        Ok(before - kept.values.len())
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

struct ValuesSetup(Arc<Values>);

impl ValuesSetup {
    fn new() -> Self {
        Self(Arc::new(Values { clock: Arc::new(ManualClock::new()), kept: Mutex::default() }))
    }
}

/// Completed in January 2027 under a token of that time, as version 1 writes it.
const GOLDEN: &str =
    "0102000100066517289880006c51e1855b0d5bcd2b9aa36d6b4b2380e2b388a92bdf3889676f6c64656e20616e73776572";

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

    async fn corrupt(&self, rk: &RecordKey) {
        let mut kept = self.0.kept.lock().unwrap();
        let value = kept.values.get_mut(rk).expect("there is a record to damage");
        let mut bytes = value.bytes.to_vec();
        bytes[10] ^= 1;
        value.bytes = bytes.into();
    }

    async fn put_golden(&self) {
        let digit = |at: usize| u8::from_str_radix(&GOLDEN[at..at + 2], 16).expect("the golden record is hexadecimal");
        let bytes: Bytes = (0..GOLDEN.len()).step_by(2).map(digit).collect();
        let (since, expires) = (self.0.clock.wall_now(), Timestamp(u64::MAX));
        let rk = hapax_testkit::golden_call().record_key();
        self.0.kept.lock().unwrap().values.insert(rk, Value { bytes, since, expires });
    }
}
