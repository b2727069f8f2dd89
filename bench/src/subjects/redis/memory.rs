use std::fmt::Write;
use std::rc::Rc;

use redis::{Client, pipe};

use super::load::{all, threads};
use super::ours::{Ours, Task};
use super::world::World;
use super::{Step, bare};
use crate::harness::{Figures, Limit, Run, Subject};
use crate::subjects::{ANSWER, Calls};

/// How many records there are when the memory is read.
const RECORDS: usize = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

const RIVAL: &str = "an answer of 55 bytes as JSON under `idempotency:<uuid>`";

/// How many answered operations fit into a GiB.
pub(super) fn completed(world: &Rc<World>) -> Subject {
    Subject {
        name: "memory, answered",
        what: "no rate: records with an answer of 55 bytes in one GiB of used_memory, by 2^20 of them",
        run: once(filled(world, Step::Cycle)),
        limit: Some(Limit { what: RIVAL, run: once(rival(world)), at_least: Some(1.18) }),
    }
}

/// The same while they run.
pub(super) fn in_progress(world: &Rc<World>) -> Subject {
    Subject {
        name: "memory, in progress",
        what: "no rate: records of operations that run in one GiB of used_memory, by 2^20 of them",
        run: once(filled(world, Step::Begin)),
        limit: Some(Limit { what: RIVAL, run: once(rival(world)), at_least: None }),
    }
}

/// What does not vary is measured once.
fn once(mut run: Run) -> Run {
    let mut known: Option<(f64, String)> = None;
    Box::new(move || {
        let (rate, note) = match &known {
            Some(known) => known.clone(),
            None => {
                let figures = run()?;
                known.insert((figures.rate, figures.note)).clone()
            }
        };
        Ok(Figures { rate, note })
    })
}

fn filled(world: &Rc<World>, step: Step) -> Run {
    let world = Rc::clone(world);
    Box::new(move || {
        let calls = Calls::new().take(RECORDS);
        let sample = bare::name(&calls[0]);
        let tasks: Vec<Task> = calls.into_iter().map(Task::new).collect();
        bytes_each(&world, &sample, |world| {
            let runtime = threads(1)?;
            runtime.block_on(async { all(&Ours { store: world.store(1)?, step }, &tasks, 1024).await })
        })
    })
}

fn rival(world: &Rc<World>) -> Run {
    let world = Rc::clone(world);
    Box::new(move || bytes_each(&world, uuid(0).as_bytes(), fill_with_json))
}

fn fill_with_json(world: &World) -> anyhow::Result<()> {
    let mut connection = Client::open(world.url())?.get_connection()?;
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
    // Spread out, as random ones are.
    let high = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let low = high.rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let digits = format!("{high:016x}{low:016x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("idempotency:{}", parts.join("-"))
}

/// State, status, body and when: what such a record usually has.
fn json() -> String {
    let mut body = String::new();
    for byte in ANSWER.iter().map(|&byte| char::from(byte)) {
        let _ = if byte == '"' { write!(body, "\\\"") } else { write!(body, "{byte}") };
    }
    format!("{{\"status\":\"COMPLETED\",\"statusCode\":201,\"body\":\"{body}\",\"completedAt\":1795222501926}}")
}

/// What an empty server's memory grows by, for each record.
fn bytes_each(
    world: &World,
    sample: &[u8],
    fill: impl FnOnce(&World) -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    world.empty()?;
    let before = world.told("memory", "used_memory")?;
    fill(world)?;
    let bytes = (world.told("memory", "used_memory")? - before) / RECORDS as f64;
    let one = world.ask(&[b"MEMORY" as &[u8], b"USAGE", sample])?.text();
    let length = world.ask(&[b"STRLEN" as &[u8], sample])?.text();
    world.empty()?;
    Ok(Figures { rate: GIB / bytes, note: format!("{bytes:.0} bytes a record (MEMORY USAGE {one}, value {length})") })
}
