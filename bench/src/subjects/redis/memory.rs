use std::fmt::Write;
use std::rc::Rc;

use redis::{Client, pipe};

use super::load::{all, threads};
use super::server::BenchServer;
use super::store::{StoreTask, StoreWorkload};
use super::{MeasuredStep, driver};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, once};
use crate::subjects::{ANSWER, FreshCalls};

/// How many records the server has when its memory is measured.
const RECORDS: usize = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

const RIVAL: &str = "an answer of 55 bytes as JSON under `idempotency:<uuid>`";

/// How many answered operations fit into a GiB.
pub(super) fn completed(server: &Rc<BenchServer>) -> Subject {
    Subject {
        name: "memory, answered",
        what: "no rate: records with an answer of 55 bytes in one GiB of used_memory, by 2^20 of them",
        run: once(filled(server, MeasuredStep::Cycle)),
        limit: Some(Limit { what: RIVAL, run: once(rival(server)), at_least: Some(1.18) }),
    }
}

/// How many running operations fit into a GiB.
pub(super) fn in_progress(server: &Rc<BenchServer>) -> Subject {
    Subject {
        name: "memory, in progress",
        what: "no rate: records of operations that run in one GiB of used_memory, by 2^20 of them",
        run: once(filled(server, MeasuredStep::Begin)),
        limit: Some(Limit { what: RIVAL, run: once(rival(server)), at_least: None }),
    }
}

fn filled(server: &Rc<BenchServer>, operation: MeasuredStep) -> MeasuredBatch {
    let server = Rc::clone(server);
    Box::new(move || {
        let calls = FreshCalls::new().take(RECORDS);
        let sample = driver::record_name(&calls[0]);
        let tasks: Vec<StoreTask> = calls.into_iter().map(StoreTask::new).collect();
        bytes_each(&server, &sample, |server| {
            let runtime = threads(1)?;
            runtime.block_on(async { all(&StoreWorkload { store: server.store(1)?, operation }, &tasks, 1024).await })
        })
    })
}

fn rival(server: &Rc<BenchServer>) -> MeasuredBatch {
    let server = Rc::clone(server);
    Box::new(move || bytes_each(&server, uuid(0).as_bytes(), fill_with_json))
}

fn fill_with_json(server: &BenchServer) -> anyhow::Result<()> {
    let mut connection = Client::open(server.url())?.get_connection()?;
    let value = json();
    for first in (0..RECORDS).step_by(1024) {
        let mut batch = pipe();
        for number in first..first + 1024 {
            batch.cmd("SET").arg(uuid(number)).arg(&value).arg("EX").arg(86_400).ignore();
        }
        batch.query::<()>(&mut connection)?;
    }
    Ok(())
}

fn uuid(number: usize) -> String {
    // Spreads the keys as random ids do.
    let high = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let low = high.rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let digits = format!("{high:016x}{low:016x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("idempotency:{}", parts.join("-"))
}

/// The usual content of such a record: state, status, body and time.
fn json() -> String {
    let mut body = String::new();
    for byte in ANSWER.iter().map(|&byte| char::from(byte)) {
        let _ = if byte == '"' { write!(body, "\\\"") } else { write!(body, "{byte}") };
    }
    format!("{{\"status\":\"COMPLETED\",\"statusCode\":201,\"body\":\"{body}\",\"completedAt\":1795222501926}}")
}

/// The memory that each record takes on an empty server.
fn bytes_each(
    server: &BenchServer,
    sample: &[u8],
    fill: impl FnOnce(&BenchServer) -> anyhow::Result<()>,
) -> anyhow::Result<BatchResult> {
    server.empty()?;
    let before = server.info("memory", "used_memory")?;
    fill(server)?;
    let bytes = (server.info("memory", "used_memory")? - before) / RECORDS as f64;
    let one = server.ask(&[b"MEMORY" as &[u8], b"USAGE", sample])?.text();
    let length = server.ask(&[b"STRLEN" as &[u8], sample])?.text();
    server.empty()?;
    Ok(BatchResult {
        rate: GIB / bytes,
        note: format!("{bytes:.0} bytes a record (MEMORY USAGE {one}, value {length})"),
    })
}
