//! Relays on one outbox and one sink under virtual time, and the events that should arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{MemoryOutbox, OutgoingEvent, Published, RowId, RowState, Sink};
use hapax_core::relay::{Relay, RelaySettings};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Finding, Memory, MemorySettings};
use hapax_core::{Error, ErrorKind, EventId, Millis, Result};
use hapax_testkit::{Process, VirtualTime};
use parking_lot::Mutex;

use super::faulty::{FaultyOutbox, OutboxFaults};

pub(super) const LEASE: Duration = Duration::from_secs(2);

/// The key of the events that a test waits for.
pub(super) const LIVE: u8 = 255;

/// What the sink has, in the order in which it got it.
#[derive(Debug, Default)]
pub(super) struct SinkLog {
    pub(super) arrived: Vec<EventId>,
    /// The ids by which the sink recognizes a repetition. None if it recognizes none.
    pub(super) remembered: Option<BTreeSet<String>>,
    /// Events that the sink never takes.
    pub(super) refuses: BTreeSet<EventId>,
    /// Keys whose events the sink does not take now, how long it takes to say so, and the pause that it asks for.
    pub(super) fails: BTreeSet<Option<Vec<u8>>>,
    pub(super) failing_takes: Duration,
    pub(super) again_after: Duration,
    /// How often the sink did not take an event of such a key.
    pub(super) not_taken: usize,
    /// Keys whose events take long.
    pub(super) slow: BTreeMap<Vec<u8>, Duration>,
}

impl SinkLog {
    /// Takes an event, unless it is recognized. Returns whether it is new.
    fn take(&mut self, event: &OutgoingEvent) -> bool {
        let is_new = self.remembered.as_mut().is_none_or(|ids| ids.insert(event.deduplication_id()));
        self.arrived.extend(is_new.then_some(event.id));
        is_new
    }
}

/// A sink of one relay. All of them write to one log.
#[derive(Debug)]
struct LogSink {
    name: Arc<str>,
    runtime: Arc<Process>,
    log: Arc<Mutex<SinkLog>>,
    window: Option<Duration>,
}

#[async_trait]
impl Sink for LogSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        1_000_000
    }

    fn window(&self) -> Option<Duration> {
        self.window
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        self.runtime.sleep(Duration::from_millis(1 + random(&*self.runtime) % 40)).await;
        if self.log.lock().refuses.contains(&event.id) {
            return Published::Refused("the sink never takes it".to_owned());
        }
        let key = event.ordering_key.as_deref().map(<[u8]>::to_vec);
        if self.log.lock().fails.contains(&key) {
            let takes = self.log.lock().failing_takes;
            let after = self.log.lock().again_after;
            self.runtime.sleep(takes).await;
            self.log.lock().not_taken += 1;
            return Published::NotPublished { after, cause: Error::new(ErrorKind::NotApplied, "no endpoint") };
        }
        let slow = key.and_then(|key| self.log.lock().slow.get(&key).copied());
        self.runtime.sleep(slow.unwrap_or_default()).await;
        let is_new = self.log.lock().take(event);
        self.runtime.sleep(Duration::from_millis(1 + random(&*self.runtime) % 40)).await;
        Published::Yes { caught: !is_new }
    }

    async fn close(&self) {}
}

/// The database, the sink and the time that all relays share.
pub(super) struct RelayWorld {
    pub(super) time: VirtualTime,
    pub(super) server: Arc<Process>,
    pub(super) outbox: MemoryOutbox,
    pub(super) store: Arc<Memory>,
    pub(super) faults: Arc<Mutex<OutboxFaults>>,
    pub(super) log: Arc<Mutex<SinkLog>>,
    /// The events of each ordering key that were committed, in their order.
    pub(super) committed: Arc<Mutex<BTreeMap<Vec<u8>, Vec<EventId>>>>,
    /// The row of each event.
    rows: Mutex<BTreeMap<EventId, RowId>>,
}

impl RelayWorld {
    pub(super) fn new(seed: u64) -> Self {
        let time = VirtualTime::new(seed);
        let server = time.process();
        let store = Arc::new(Memory::with(Arc::clone(&server) as _, MemorySettings::default()));
        let outbox = MemoryOutbox::new(Arc::clone(&server) as _);
        let (faults, log) = (Arc::default(), Arc::default());
        Self { time, server, outbox, store, faults, log, committed: Arc::default(), rows: Mutex::default() }
    }

    /// Starts a relay in a process of its own.
    pub(super) fn start_relay(&self) -> Arc<Process> {
        self.start_relay_with(|_| ())
    }

    /// Starts a relay with other settings.
    pub(super) fn start_relay_with(&self, change: impl FnOnce(&mut RelaySettings)) -> Arc<Process> {
        self.start_relay_for(None, change)
    }

    /// Starts a relay that is asked to stop after this time.
    pub(super) fn start_relay_for(
        &self,
        time: Option<Duration>,
        change: impl FnOnce(&mut RelaySettings),
    ) -> Arc<Process> {
        let process = self.time.process();
        let mut settings = RelaySettings::default();
        settings.lease = Millis(u32::try_from(LEASE.as_millis()).unwrap());
        (settings.max_in_flight, settings.max_held) = (64, 512);
        change(&mut settings);
        let relay = self.build_relay(&process, settings, None).unwrap();
        let runtime = Arc::clone(&process);
        let shutdown = async move {
            match time {
                Some(time) => runtime.sleep(time).await,
                None => pending().await,
            }
        };
        process.start(async move { relay.run(shutdown).await });
        process
    }

    /// Builds a relay whose sink recognizes repetitions this long.
    pub(super) fn build_relay(
        &self,
        process: &Arc<Process>,
        settings: RelaySettings,
        window: Option<Duration>,
    ) -> Result<Relay> {
        let log = Arc::clone(&self.log);
        let sink = LogSink { name: "log".into(), runtime: Arc::clone(process), log, window };
        let (runtime, faults) = (Arc::clone(process), Arc::clone(&self.faults));
        let outbox = FaultyOutbox { outbox: self.outbox.clone(), runtime, faults };
        Relay::builder(Arc::new(outbox.clone()), Arc::clone(&self.store) as _, Arc::new(sink))
            .upkeep(Arc::new(outbox))
            .settings(settings)
            .runtime(Arc::clone(process) as _)
            .build()
    }

    /// Writes one event of a key in a transaction of its own, or none if it is rolled back. While the transaction is
    /// open, the key is locked, as by the row of its account.
    pub(super) fn emit(&self, key: Option<u8>, open_for: Duration, commits: bool) {
        let (outbox, committed) = (self.outbox.clone(), Arc::clone(&self.committed));
        let id = event_id(&*self.server);
        let topic = if key.is_some() { "transfers" } else { "mails" };
        let mut event = OutgoingEvent::new(id, topic, vec![0; 10]);
        event.ordering_key = key.map(|key| vec![key].into());
        let runtime = Arc::clone(&self.server);
        let mut transaction = outbox.begin();
        self.rows.lock().insert(id, transaction.insert(event));
        self.server.start(async move {
            runtime.sleep(open_for).await;
            if commits {
                let key = key.map_or_else(|| id.as_bytes().to_vec(), |key| vec![key]);
                committed.lock().entry(key).or_default().push(id);
                transaction.commit();
            }
        });
    }

    /// Waits until every committed event is published and marked.
    ///
    /// # Panics
    /// If an event is not marked within a minute of virtual time.
    pub(super) fn finish(&self) {
        let is_finished = || self.all_marked().then_some(());
        let finished = self.time.run_until(Duration::from_secs(60), || {
            // Looking at all rows after every step would be slow.
            if random(&*self.server).is_multiple_of(64) { is_finished() } else { None }
        });
        assert!(finished.is_some(), "events are left");
    }

    fn all_marked(&self) -> bool {
        self.committed.lock().values().flatten().all(|id| self.state(*id) == Some(RowState::Published))
    }

    /// Emits an event of the live key each second, and returns how long the slowest of them took to arrive.
    ///
    /// # Panics
    /// If one does not arrive within a minute.
    pub(super) fn slowest_live_event(&self, events: usize) -> Duration {
        let mut slowest = Duration::ZERO;
        for number in 0..events {
            let (begun, arrived_before) = (self.time.now(), self.log.lock().arrived.len());
            self.emit(Some(LIVE), Duration::ZERO, true);
            self.time.run_for(Duration::from_millis(1));
            let id = self.committed.lock()[&vec![LIVE]].last().copied().unwrap();
            let has_arrived = || self.log.lock().arrived[arrived_before..].contains(&id).then_some(());
            let arrived = self.time.run_until(Duration::from_secs(60), has_arrived);
            assert!(arrived.is_some(), "the live event {number} did not arrive within a minute");
            let took = self.time.now() - begun;
            slowest = slowest.max(took);
            self.time.run_for(Duration::from_secs(1).saturating_sub(took));
        }
        slowest
    }

    /// The row of an event.
    pub(super) fn row(&self, id: EventId) -> RowId {
        self.rows.lock()[&id]
    }

    /// The state of the row of an event.
    pub(super) fn state(&self, id: EventId) -> Option<RowState> {
        self.outbox.state(self.row(id))
    }

    /// Every committed event has arrived, and the first arrivals of each key are in its order.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self, what: &str) {
        let arrivals = self.first_arrivals();
        for (key, expected) in &*self.committed.lock() {
            assert_eq!(arrivals.get(key), Some(expected), "{what}, key {key:?}");
        }
    }

    /// What an inbox keeps: the first arrival of each event, by key.
    ///
    /// # Panics
    /// If an event arrived that was never committed.
    pub(super) fn first_arrivals(&self) -> BTreeMap<Vec<u8>, Vec<EventId>> {
        let committed = self.committed.lock();
        let keys = committed.iter().flat_map(|(key, ids)| ids.iter().map(move |id| (*id, key)));
        let keys: BTreeMap<EventId, &Vec<u8>> = keys.collect();
        let mut seen = BTreeSet::new();
        let mut arrivals = BTreeMap::<Vec<u8>, Vec<EventId>>::new();
        for id in &self.log.lock().arrived {
            assert!(keys.contains_key(id), "an event arrived that was not committed");
            if seen.insert(*id) {
                arrivals.entry(keys[id].clone()).or_default().push(*id);
            }
        }
        arrivals
    }
}

/// Lets virtual time pass.
pub(super) async fn pause(runtime: &Process, time: Duration) {
    runtime.sleep(time).await;
}

pub(super) fn event_id(runtime: &dyn Runtime) -> EventId {
    let mut bytes = [0; 16];
    runtime.fill_random(&mut bytes);
    EventId::from_bytes(bytes)
}

fn random(runtime: &dyn Runtime) -> u64 {
    let mut bytes = [0; 8];
    runtime.fill_random(&mut bytes);
    u64::from_be_bytes(bytes)
}
