//! What is known to have happened, and what must never follow from it.
//!
//! It shares no code with the engine but the record key: it looks at handlers, at what callers are told, and at records before and
//! after each request that the store carries out. The rules are in its neighbours, each with what relaxes it:
//! `attempts.rs` what may run, `leases.rs` for how long, `records.rs` what may stand in the store, `told.rs` what callers may hear, `ending.rs` how it all ends.

mod attempts;
mod ending;
mod history;
mod leases;
mod records;
mod told;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::journal::MemoryJournal;
use hapax_core::{Call, Owner, RecordKey, Timestamp};

use crate::plan::{Class, Plan};
use crate::store::{Request, Shelf};
use crate::trace::{Counts, Trace};
use history::{CallHistory, KeyHistory, Life};

pub(crate) use attempts::Running;

/// The history of a world, and the first rule that it broke.
pub(crate) struct Oracle {
    plan: Arc<Plan>,
    shelf: Arc<Shelf>,
    known: Mutex<Known>,
}

pub(crate) struct Known {
    trace: Trace,
    keys: Vec<KeyHistory>,
    by_rk: BTreeMap<RecordKey, usize>,
    calls: Vec<CallHistory>,
    lives: Vec<Life>,
    /// The calls whose handlers run, and when to look after them again.
    running: Vec<(usize, Duration)>,
    /// The renewals that are under way, by the life of a process and the owner.
    renewals: Vec<(usize, Owner)>,
    /// The latest that the store's clock ever showed.
    latest: Timestamp,
    /// Who begins, by the life of a process.
    begun: BTreeMap<[u8; 16], usize>,
    /// When the store's clock stepped last.
    store_clock_stepped: Option<Duration>,
    /// When the whole store was last in trouble.
    store_troubled: Option<Duration>,
    /// Everything is well again: no fault is still to come.
    healed: bool,
    /// The world is taken down.
    over: bool,
    violation: Option<String>,
}

/// What a run was, in the end.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) violation: Option<String>,
    pub(crate) counts: Counts,
    pub(crate) hash: u64,
    pub(crate) trace: String,
}

impl Oracle {
    /// `calls` has, for each key, the call under each of its payloads.
    pub(crate) fn new(plan: Arc<Plan>, shelf: Arc<Shelf>, calls: &[[Call; 2]], keeps_trace: bool) -> Arc<Self> {
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
            .map(|(key, calls)| KeyHistory::new(plan.route(key).effect, plan.may(Class::Operator), calls))
            .collect();
        let known = Known {
            trace: Trace::new(keeps_trace),
            keys,
            by_rk,
            calls: Vec::new(),
            lives: Vec::new(),
            running: Vec::new(),
            renewals: Vec::new(),
            latest: Timestamp(0),
            begun: BTreeMap::new(),
            store_clock_stepped: None,
            store_troubled: None,
            healed: false,
            over: false,
            violation,
        };
        Arc::new(Self { plan, shelf, known: Mutex::new(known) })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time has come this far; says whether a rule is broken.
    pub(crate) fn step(&self, now: Duration) -> bool {
        let mut known = self.lock();
        if now > known.trace.now() {
            known.trace.at(now);
            self.looks_after_leases(&mut known);
        }
        known.violation.is_some()
    }

    /// Something strikes.
    pub(crate) fn strikes(&self, class: Class, what: fmt::Arguments<'_>) {
        let mut known = self.lock();
        known.trace.count(class.name());
        known.trace.line(what);
    }

    pub(crate) fn counts(&self, class: Class) {
        self.lock().trace.count(class.name());
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.lock().trace.line(what);
    }

    /// A process starts; the number of its life.
    pub(crate) fn is_born(&self, process: usize, journal: Option<Arc<MemoryJournal>>) -> usize {
        let mut known = self.lock();
        let life = known.lives.len();
        known.lives.push(Life::new(process, journal));
        known.trace.line(format_args!("process {process} starts its life {life}"));
        life
    }

    /// It finds completions in its journal that an earlier life left.
    pub(crate) fn adopts(&self) {
        let mut known = self.lock();
        known.trace.count("journal adopted");
        known.trace.line(format_args!("its journal is not empty"));
    }

    /// A process ends in the middle of everything.
    pub(crate) fn crashes(&self, life: usize) {
        let mut known = self.lock();
        known.lives[life].crashed = true;
        known.excuse_all_of(life, "a process that had worked on it crashed");
        known.strike(life, Class::Crash, "crashes");
    }

    /// All tasks of a process are about to be dropped.
    pub(crate) fn is_cut_off(&self, life: usize) {
        let mut known = self.lock();
        known.lives[life].cut_off = Some(known.trace.now());
        known.excuse_all_of(life, "the tasks of a process that had worked on it were dropped");
        known.strike(life, Class::Abort, "loses its tasks");
    }

    /// A part of a process stands still, so that its handlers may not hear in time that they are to stop.
    pub(crate) fn stalls(&self, life: usize, class: Class, time: Duration) {
        let mut known = self.lock();
        if class != Class::ExecutorLate {
            let until = known.trace.now() + time;
            let life = &mut known.lives[life];
            life.stalled_until = life.stalled_until.max(until);
            life.troubled = life.troubled.max(Some(until));
        }
        let process = known.lives[life].process;
        known.trace.count(class.name());
        known.trace.line(format_args!("process {process}: {} for {time:?}", class.name()));
    }

    pub(crate) fn store_clock_steps(&self) {
        let mut known = self.lock();
        known.store_clock_stepped = Some(known.trace.now());
        known.store_troubled = Some(known.trace.now());
    }

    /// The store is down, or comes back.
    pub(crate) fn store_in_trouble(&self) {
        let mut known = self.lock();
        known.store_troubled = Some(known.trace.now());
    }

    /// A call to the store meets a fault.
    pub(crate) fn troubles(&self, life: usize, rk: RecordKey, request: &Request, fate: &fmt::Arguments<'_>) {
        let mut known = self.lock();
        let process = known.lives[life].process;
        if matches!(request, Request::Begin | Request::Renew(_) | Request::Dedicated) {
            known.lives[life].troubled = known.lives[life].troubled.max(Some(known.trace.now()));
        }
        let key = known.by_rk.get(&rk).map_or_else(String::new, |key| format!(" of key {key}"));
        known.trace.line(format_args!("process {process}: {request}{key} meets {fate}"));
    }

    pub(crate) fn is_healed(&self) {
        let mut known = self.lock();
        known.healed = true;
        known.trace.line(format_args!("everything is well again"));
    }

    pub(crate) fn is_over(&self) {
        self.lock().over = true;
    }

    pub(crate) fn breaks(&self, rule: &str) {
        self.lock().breaks("the world", rule);
    }

    pub(crate) fn verdict(&self, choices: u64) -> Verdict {
        let known = self.lock();
        Verdict {
            violation: known.violation.clone(),
            counts: known.trace.counts.clone(),
            hash: known.trace.hash() ^ choices,
            trace: known.trace.text(),
        }
    }
}

impl Known {
    fn hold(&mut self, key: usize, holds: bool, rule: &str) {
        if !holds {
            self.breaks(&format!("key {key}"), rule);
        }
    }

    fn breaks(&mut self, who: &str, rule: &str) {
        if self.violation.is_none() {
            self.trace.line(format_args!("{who} BREAKS A RULE: {rule}"));
            self.violation = Some(rule.into());
        }
    }

    fn strike(&mut self, life: usize, class: Class, what: &str) {
        let process = self.lives[life].process;
        self.trace.count(class.name());
        self.trace.line(format_args!("process {process} {what}"));
    }

    /// From now on the outcome of every key that this process worked on may stay unknown.
    fn excuse_all_of(&mut self, life: usize, reason: &'static str) {
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
