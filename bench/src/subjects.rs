//! The benchmarks: each function builds one subject or one set of subjects.

mod answers;
mod coalesce;
mod gate;
mod gateway;
mod http;
mod keys;
mod ledger;
mod memory;
mod pipeline;
mod postgres;
mod redis;
mod relay;
mod server_process;
mod sqlite;
mod statements;
mod waiting_copies;
mod worker;

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use hapax_core::machine::{Begin, Claim, Complete, Grant, Lapse};
use hapax_core::store::Inserted;
use hapax_core::{Call, Identity, Key, Millis, Owner, Rule, Scope, Seconds, Store, Timestamp};

use crate::harness::Subject;

pub(crate) use coalesce::resident_bytes;
pub(crate) use statements::connect;

/// The subjects of the gate, the memory store and the SQLite store.
pub(crate) fn library() -> Vec<Subject> {
    vec![
        memory::store_alone(),
        gate::run(),
        gate::run_beside_its_store(),
        coalesce::one_key(),
        coalesce::memory_per_call(),
        sqlite::durable(),
    ]
}

/// The HTTP layer.
pub(crate) fn http() -> Vec<Subject> {
    vec![http::fresh(), http::replays(), http::bare()]
}

/// Large answers in a bucket.
pub(crate) fn answers() -> anyhow::Result<Vec<Subject>> {
    answers::all()
}

/// The gateway as a process, under load from wrk.
pub(crate) fn gateway() -> anyhow::Result<Vec<Subject>> {
    gateway::all()
}

/// Lists of a million records, and the gateway while they are read.
pub(crate) fn keys(records: &str) -> anyhow::Result<Vec<Subject>> {
    keys::among(if records.is_empty() { 1_000_000 } else { records.parse().context("write a number of records")? })
}

/// The store on Redis, against the driver alone.
pub(crate) fn redis() -> anyhow::Result<Vec<Subject>> {
    redis::all()
}

/// The store on PostgreSQL, against its statements by the driver alone and against single statements.
pub(crate) fn postgres() -> anyhow::Result<Vec<Subject>> {
    postgres::all()
}

/// The store on PostgreSQL among ten million records.
pub(crate) fn large_postgres() -> anyhow::Result<Vec<Subject>> {
    postgres::among_many()
}

/// The ledger, against the same effect with a bare claim row.
pub(crate) fn ledger() -> anyhow::Result<Vec<Subject>> {
    ledger::all()
}

/// The ledger among ten million rows.
pub(crate) fn large_ledger() -> anyhow::Result<Vec<Subject>> {
    ledger::among_many()
}

/// The worker, beside loops that do the same without it.
pub(crate) fn worker() -> anyhow::Result<Vec<Subject>> {
    worker::all()
}

/// The memory of a worker in front of a backlog of a million messages.
pub(crate) fn worker_backlog() -> anyhow::Result<Vec<Subject>> {
    worker::backlog(1_000_000)
}

/// The relay, beside a loop that reads and publishes without it.
pub(crate) fn relay() -> anyhow::Result<Vec<Subject>> {
    relay::all()
}

/// The relay in front of a backlog of a million rows.
pub(crate) fn relay_backlog() -> anyhow::Result<Vec<Subject>> {
    relay::backlog()
}

pub(crate) use relay::publish_until_end;

/// All three layers between real servers.
pub(crate) fn pipeline() -> anyhow::Result<Vec<Subject>> {
    pipeline::all()
}

/// What each layer adds to the latency of a pipeline.
pub(crate) fn pipeline_latencies() -> anyhow::Result<String> {
    pipeline::latencies()
}

pub(crate) use worker::drain_and_report as drain;

/// An answer of 55 bytes.
const ANSWER: &[u8] = b"{\"charge\":\"ch_0123456789\",\"amount\":500,\"status\":\"paid\"}";

/// Makes calls with different keys, numbered from 1. Two generators make the same keys, so each batch needs an empty
/// store or the generator of the batch before it.
pub(crate) struct FreshCalls {
    identity: Identity,
    scope: Scope,
    next: u64,
}

impl FreshCalls {
    pub(crate) fn new() -> Self {
        Self { identity: Identity::plain(), scope: Scope::tenant("bench", "acme").expect("a scope"), next: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Call> {
        (0..count).map(|_| self.take_one()).collect()
    }

    fn take_one(&mut self) -> Call {
        self.next += 1;
        call(&self.identity, &self.scope, self.next)
    }
}

/// Builds a call as a transport does: key, scope and fingerprint.
fn call(identity: &Identity, scope: &Scope, number: u64) -> Call {
    let key = Key::new(number.to_be_bytes()).expect("a key");
    identity
        .call(scope, &key)
        .fingerprint(identity.fingerprint(Rule(1), &[b"POST", b"/charges", b"", b"", b"{\"amount\":500}"]))
}

/// Sends the two store calls of a new key: begin and complete.
async fn full_cycle(store: &dyn Store, call: Call) -> anyhow::Result<()> {
    full_cycle_with(store, call, Bytes::from_static(ANSWER)).await
}

/// Begins and completes a new key with this answer.
pub(crate) async fn full_cycle_with(store: &dyn Store, call: Call, answer: Bytes) -> anyhow::Result<()> {
    let grant = begin_new(store, call).await?;
    let complete = Complete {
        claim: Claim::from(&grant),
        fingerprint: grant.fingerprint,
        answer,
        retention: Seconds(86_400),
        ended: Timestamp(0),
        age: Duration::ZERO,
    };
    store.complete(&call.record_key(), &complete).await?;
    Ok(())
}

/// Begins a new key.
async fn begin_new(store: &dyn Store, call: Call) -> anyhow::Result<Grant> {
    match store.begin(&begin_request(call)).await? {
        Inserted::Granted(grant) => Ok(grant),
        Inserted::Found(_) => bail!("the store has a record of a new key"),
    }
}

fn begin_request(call: Call) -> Begin {
    Begin {
        call,
        owner: Owner([7; 16]),
        lease: Millis(30_000),
        unknown_retention: Seconds(2_592_000),
        on_lapse: Lapse::Hold,
    }
}
