//! A world on one thread, in which every task is polled in a chosen order and time passes only when nothing else can go on.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hapax_core::runtime::BoxFuture;

pub use process::{Clocks, Part, Process, Started};

/// Which of so many runnable tasks goes on, counted from the one that was spawned first.
pub type Choose = Box<dyn FnMut(usize) -> usize + Send>;

/// More steps than this without any time passing: the tasks wake each other for ever.
const LIVELOCK: usize = 100_000;

/// The clock and all tasks of a world. Only its owner lets tasks go on and time pass; with it, every task is dropped.
#[derive(Debug)]
pub struct VirtualTime(Arc<World>);

impl VirtualTime {
    /// A world whose random bytes follow from the seed, and whose tasks go on in the order in which they were woken.
    pub fn new(seed: u64) -> Self {
        Self::ordered(seed, Order::Woken)
    }

    /// A world with an order of its own. It does not depend on who was woken first: primitives that wake many at once
    /// may do so in any order.
    pub fn choosing(seed: u64, choose: Choose) -> Self {
        Self::ordered(seed, Order::Chosen(choose))
    }

    fn ordered(seed: u64, order: Order) -> Self {
        Self(Arc::new(World(Mutex::new(State {
            now: Duration::ZERO,
            tasks: BTreeMap::new(),
            runnable: Vec::new(),
            timers: BTreeMap::new(),
            crashed: BTreeSet::new(),
            paused: BTreeSet::new(),
            last_number: 0,
            random: seed,
            order,
        }))))
    }

    /// A process of this world: a runtime whose tasks can end all at once.
    pub fn process(&self) -> Arc<Process> {
        World::process(&self.0)
    }

    /// How much time has passed.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// How many tasks have not ended, threads among them.
    pub fn tasks(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Polls one task; false if none can go on before time passes.
    pub fn step(&self) -> bool {
        let Some((number, mut future, waker)) = self.0.lock().next_task() else {
            return false;
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.0.lock();
        let ended = match (polled, state.tasks.get_mut(&number)) {
            (Poll::Pending, Some(task)) => {
                task.future = Some(future);
                None
            }
            // It ended, or its process did while it was polled.
            (Poll::Ready(()) | Poll::Pending, _) => Some((state.tasks.remove(&number), future)),
        };
        drop(state);
        drop(ended);
        true
    }

    /// Lets tasks go on and time pass until there is something to return; nothing if there is not after so much time.
    /// Looks before the first step, and after each step and each passage of time.
    ///
    /// # Panics
    /// If the tasks go on for ever without any time passing.
    pub fn run_until<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let end = self.now() + limit;
        let mut steps = 0;
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if self.step() {
                steps += 1;
                assert!(steps < LIVELOCK, "the tasks wake each other for ever");
            } else if self.0.pass(end) {
                steps = 0;
            } else {
                return None;
            }
        }
    }

    /// Lets this much time pass, and every task go on meanwhile.
    ///
    /// # Panics
    /// See [`VirtualTime::run_until`].
    pub fn run_for(&self, time: Duration) {
        self.run_until(time, || None::<()>);
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        let processes: BTreeSet<_> = self.0.lock().tasks.values().map(|task| task.process).collect();
        for process in processes {
            self.0.crash(process);
        }
    }
}

struct World(Mutex<State>);

struct State {
    now: Duration,
    tasks: BTreeMap<u64, Task>,
    /// In the order in which they were woken, or spawned where one is chosen.
    runnable: Vec<u64>,
    timers: BTreeMap<(Duration, u64), Waker>,
    crashed: BTreeSet<u64>,
    /// Processes whose tasks do not go on for now, and those whose threads do not.
    paused: BTreeSet<(u64, bool)>,
    last_number: u64,
    random: u64,
    order: Order,
}

/// Who goes on next.
enum Order {
    /// Whoever was woken first.
    Woken,
    /// Whoever is chosen.
    Chosen(Choose),
}

struct Task {
    process: u64,
    /// Whether it stands for a thread of its own.
    thread: bool,
    /// Away while it is polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a task ends the test, and the world is only taken down after it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(self: &Arc<Self>) -> Arc<Process> {
        let number = self.lock().number();
        Arc::new(Process { world: Arc::clone(self), number, clocks: Mutex::default() })
    }

    fn spawn(self: &Arc<Self>, process: u64, thread: bool, future: BoxFuture<'static, ()>) -> Option<u64> {
        let mut state = self.lock();
        if state.crashed.contains(&process) {
            drop(state);
            drop(future);
            return None;
        }
        let number = state.number();
        let waker = Waker::from(Arc::new(Alarm { world: Arc::downgrade(self), task: number }));
        state.tasks.insert(number, Task { process, thread, future: Some(future), waker });
        state.woken(number);
        Some(number)
    }

    /// Lets time pass until the next timer is due, or to the end; false if the end was reached before any was.
    fn pass(&self, end: Duration) -> bool {
        let mut state = self.lock();
        let next = state.timers.first_key_value().map(|(&(due, _), _)| due).filter(|due| *due <= end);
        state.now = state.now.max(next.unwrap_or(end));
        let mut due = Vec::new();
        while let Some(timer) = state.timers.first_entry().filter(|timer| Some(timer.key().0) <= next) {
            due.push(timer.remove());
        }
        drop(state);
        due.into_iter().for_each(Waker::wake);
        next.is_some()
    }

    fn drop_tasks(&self, of_it: impl Fn(&u64, &Task) -> bool) {
        // Not dropped under the lock: what is dropped may wake and spawn.
        let dropped: Vec<_> = {
            let mut state = self.lock();
            state.tasks.extract_if(.., |number, task| of_it(number, task)).collect()
        };
        drop(dropped);
    }

    fn crash(&self, process: u64) {
        self.lock().crashed.insert(process);
        self.drop_tasks(|_, task| task.process == process);
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn woken(&mut self, number: u64) {
        let place = match &self.order {
            Order::Woken if self.runnable.contains(&number) => return,
            Order::Woken => self.runnable.len(),
            Order::Chosen(_) => match self.runnable.binary_search(&number) {
                Ok(_) => return,
                Err(place) => place,
            },
        };
        self.runnable.insert(place, number);
    }

    fn next_task(&mut self) -> Option<(u64, BoxFuture<'static, ()>, Waker)> {
        self.runnable.retain(|number| self.tasks.contains_key(number));
        while let Some(place) = self.next_place() {
            let number = self.runnable.remove(place);
            if let Some(task) = self.tasks.get_mut(&number)
                && let Some(future) = task.future.take()
            {
                return Some((number, future, task.waker.clone()));
            }
        }
        None
    }

    /// The place of the task that goes on next, among those that can.
    fn next_place(&mut self) -> Option<usize> {
        let (tasks, paused) = (&self.tasks, &self.paused);
        let can = |number: &u64| tasks.get(number).is_some_and(|task| !paused.contains(&(task.process, task.thread)));
        let can: Vec<usize> = (0..self.runnable.len()).filter(|place| can(&self.runnable[*place])).collect();
        match &mut self.order {
            Order::Woken => can.first().copied(),
            Order::Chosen(_) if can.is_empty() => None,
            Order::Chosen(choose) => Some(can[choose(can.len())]),
        }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "World({:?}, {} tasks)", state.now, state.tasks.len())
    }
}

struct Alarm {
    world: Weak<World>,
    task: u64,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let Some(world) = self.world.upgrade() else {
            return;
        };
        world.lock().woken(self.task);
    }
}
