//! Checks a world against the rules.
//!
//! The oracle shares no code with the engine except the record key. It observes handlers, the outcomes that callers
//! receive, and each record before and after each request that the store carries out. Each of these files lists its
//! rules, and the faults that relax them:
//!
//! ```text
//! attempts.rs   which handlers may run
//! availability.rs  when the gate may treat the store as down
//! leases.rs     for how long they may run
//! records.rs    how records may change
//! changes.rs    which state of a record may follow which
//! received.rs   which outcomes callers may receive
//! ending.rs     how each key must end
//! ```
//!
//! Some rules are relaxed for a key after *the store forgot its record*: the store lost it by amnesia, or the record
//! expired.

mod attempts;
mod availability;
mod changes;
mod ending;
mod history;
mod leases;
mod received;
mod records;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::journal::MemoryJournal;
use hapax_core::{Call, Owner, RecordKey, Timestamp};

use crate::plan::{FaultClass, Plan};
use crate::store::{StoreCall, StoreServer};
use crate::trace::{Counts, Trace};
use history::{CallHistory, KeyHistory, ProcessLife};

pub(crate) use attempts::RunningHandler;

/// The history of a world, and the first rule that it broke.
pub(crate) struct Oracle {
    plan: Arc<Plan>,
    shelf: Arc<StoreServer>,
    known: Mutex<OracleState>,
}

pub(crate) struct OracleState {
    trace: Trace,
    keys: Vec<KeyHistory>,
    by_rk: BTreeMap<RecordKey, usize>,
    calls: Vec<CallHistory>,
    lives: Vec<ProcessLife>,
    /// The calls whose handlers run, and when to check each of them next.
    running: Vec<(usize, Duration)>,
    /// The renewals in flight, by the life of a process and the owner.
    renewals: Vec<(usize, Owner)>,
    /// The latest reading of the store's clock.
    latest: Timestamp,
    /// For each owner, the life of the process that began.
    begun: BTreeMap<[u8; 16], usize>,
    /// By the life of a process and the owner, when it first tried a spilled answer whose record must have expired.
    tried_last: BTreeMap<(usize, [u8; 16]), Duration>,
    /// When the store's clock last stepped.
    store_clock_stepped: Option<Duration>,
    /// When the whole store was last unavailable or slow.
    store_troubled: Option<Duration>,
    /// Whether all faults have ended.
    healed: bool,
    /// Whether the world is being taken down.
    over: bool,
    violation: Option<String>,
}

/// The result of a run, as the oracle saw it.
#[derive(Clone, Debug)]
pub(crate) struct OracleReport {
    pub(crate) violation: Option<String>,
    pub(crate) counts: Counts,
    pub(crate) hash: u64,
    pub(crate) trace: String,
}

impl Oracle {
    /// `calls` has, for each key, the call under each of its payloads.
    pub(crate) fn new(plan: Arc<Plan>, shelf: Arc<StoreServer>, calls: &[[Call; 2]], keeps_trace: bool) -> Arc<Self> {
        let mut by_rk = BTreeMap::new();
        let mut violation = None;
        for (key, payloads) in calls.iter().enumerate() {
            if by_rk.insert(payloads[0].record_key(), key).is_some() {
                violation = Some("two keys share a record".into());
            }
        }
        let keys = calls
            .iter()
            .enumerate()
            .map(|(key, calls)| KeyHistory::new(plan.route(key).effect, plan.allows(FaultClass::Operator), calls))
            .collect();
        let known = OracleState {
            trace: Trace::new(keeps_trace),
            keys,
            by_rk,
            calls: Vec::new(),
            lives: Vec::new(),
            running: Vec::new(),
            renewals: Vec::new(),
            latest: Timestamp(0),
            begun: BTreeMap::new(),
            tried_last: BTreeMap::new(),
            store_clock_stepped: None,
            store_troubled: None,
            healed: false,
            over: false,
            violation,
        };
        Arc::new(Self { plan, shelf, known: Mutex::new(known) })
    }

    fn lock(&self) -> MutexGuard<'_, OracleState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the time. Returns whether a rule is broken.
    pub(crate) fn step(&self, now: Duration) -> bool {
        let mut known = self.lock();
        if now > known.trace.now() {
            known.trace.at(now);
            self.check_leases(&mut known);
        }
        known.violation.is_some()
    }

    /// Counts and traces a fault.
    pub(crate) fn record_fault(&self, class: FaultClass, what: fmt::Arguments<'_>) {
        let mut known = self.lock();
        known.trace.count(class.name());
        known.trace.line(what);
    }

    pub(crate) fn count_fault(&self, class: FaultClass) {
        self.count(class.name());
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.lock().trace.count(what);
    }

    /// A worker is about to ask for a grant of this key.
    pub(crate) fn start_work(&self, key: usize, owner: Owner) {
        self.lock().keys[key].worked_by.push(owner);
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.lock().trace.line(what);
    }

    /// A process starts. Returns the number of its life.
    pub(crate) fn start_life(&self, process: usize, journal: Option<Arc<MemoryJournal>>) -> usize {
        let mut known = self.lock();
        let life = known.lives.len();
        known.lives.push(ProcessLife::new(process, journal));
        known.trace.line(format_args!("process {process} starts its life {life}"));
        life
    }

    /// A process finds completions in its journal that an earlier life left.
    pub(crate) fn adopt_journal(&self) {
        let mut known = self.lock();
        known.trace.count("journal adopted");
        known.trace.line(format_args!("its journal has entries"));
    }

    /// A process crashes.
    pub(crate) fn record_crash(&self, life: usize) {
        let mut known = self.lock();
        known.lives[life].crashed = true;
        known.excuse_keys_of(life, "a process that had worked on it crashed");
        known.record_process_fault(life, FaultClass::Crash, "crashes");
    }

    /// All tasks of a process are about to be dropped.
    pub(crate) fn record_dropped_tasks(&self, life: usize) {
        let mut known = self.lock();
        known.lives[life].cut_off = Some(known.trace.now());
        known.excuse_keys_of(life, "the tasks of a process that had worked on it were dropped");
        known.record_process_fault(life, FaultClass::Abort, "loses its tasks");
    }

    /// A part of a process stands still, so its handlers may be cancelled late.
    pub(crate) fn record_stall(&self, life: usize, class: FaultClass, time: Duration) {
        let mut known = self.lock();
        let until = known.trace.now() + time;
        known.lives[life].fail_until(until);
        known.lives[life].has_stood_still = true;
        known.lives[life].begins.suspect_all();
        if class != FaultClass::ExecutorLate {
            let life = &mut known.lives[life];
            life.stalled_until = life.stalled_until.max(until);
            life.troubled = life.troubled.max(Some(until));
        }
        let process = known.lives[life].process;
        known.trace.count(class.name());
        known.trace.line(format_args!("process {process}: {} for {time:?}", class.name()));
    }

    pub(crate) fn record_clock_step(&self) {
        let mut known = self.lock();
        known.store_clock_stepped = Some(known.trace.now());
        known.store_troubled = Some(known.trace.now());
    }

    /// The store becomes unavailable or available.
    pub(crate) fn record_store_fault(&self) {
        let mut known = self.lock();
        known.store_troubled = Some(known.trace.now());
    }

    /// A store call meets a fault.
    pub(crate) fn record_call_fault(&self, life: usize, rk: RecordKey, request: &StoreCall, fate: &fmt::Arguments<'_>) {
        let mut known = self.lock();
        let process = known.lives[life].process;
        if matches!(request, StoreCall::Begin | StoreCall::Renew(_) | StoreCall::Dedicated) {
            known.lives[life].troubled = known.lives[life].troubled.max(Some(known.trace.now()));
        }
        let key = known.by_rk.get(&rk).map_or_else(String::new, |key| format!(" of key {key}"));
        known.trace.line(format_args!("process {process}: {request}{key} meets {fate}"));
    }

    pub(crate) fn heal(&self) {
        let mut known = self.lock();
        known.healed = true;
        known.trace.line(format_args!("all faults end"));
    }

    pub(crate) fn end(&self) {
        self.lock().over = true;
    }

    pub(crate) fn fail(&self, rule: &str) {
        self.lock().fail("the world", rule);
    }

    pub(crate) fn verdict(&self, choices: u64) -> OracleReport {
        let known = self.lock();
        OracleReport {
            violation: known.violation.clone(),
            counts: known.trace.counts.clone(),
            hash: known.trace.hash() ^ choices,
            trace: known.trace.text(),
        }
    }
}

impl OracleState {
    fn check(&mut self, key: usize, holds: bool, rule: &str) {
        if !holds {
            self.fail(&format!("key {key}"), rule);
        }
    }

    fn fail(&mut self, who: &str, rule: &str) {
        if self.violation.is_none() {
            self.trace.line(format_args!("{who} BREAKS A RULE: {rule}"));
            self.violation = Some(rule.into());
        }
    }

    fn record_process_fault(&mut self, life: usize, class: FaultClass, what: &str) {
        let process = self.lives[life].process;
        self.trace.count(class.name());
        self.trace.line(format_args!("process {process} {what}"));
    }

    /// From now on the final outcome of every key that this process called may be unknown.
    fn excuse_keys_of(&mut self, life: usize, reason: &'static str) {
        for call in self.calls.iter().filter(|call| call.life == life) {
            self.keys[call.key].excuse(reason);
        }
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Oracle")
    }
}
