//! A scheduler on one thread: it polls tasks in a chosen order, and advances time only when no task can run.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hapax_core::runtime::BoxFuture;
use parking_lot::{Mutex, MutexGuard};

pub use process::{ClockOffsets, Process, ProcessPart, TaskHandle};

/// Given the number of runnable tasks, returns the index of the one to poll. Index 0 is the task that was spawned
/// first.
pub type ChooseTask = Box<dyn FnMut(usize) -> usize + Send>;

/// After this many steps without time passing, the tasks are considered to wake each other for ever.
const MAX_STEPS_PER_INSTANT: usize = 100_000;

/// A virtual clock and its tasks. Tasks run and time passes only in calls of its methods. Dropping it drops every task.
#[derive(Debug)]
pub struct VirtualTime(Arc<Scheduler>);

impl VirtualTime {
    /// A scheduler with random bytes from the seed, which polls tasks in the order in which they were woken.
    pub fn new(seed: u64) -> Self {
        Self::ordered(seed, PollOrder::Woken)
    }

    /// A scheduler that polls tasks in the order of `choose`. That order does not depend on the order of wake-ups,
    /// which some synchronisation primitives leave open.
    pub fn choosing(seed: u64, choose: ChooseTask) -> Self {
        Self::ordered(seed, PollOrder::Chosen(choose))
    }

    fn ordered(seed: u64, order: PollOrder) -> Self {
        Self(Arc::new(Scheduler(Mutex::new(SchedulerState {
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

    /// Creates a process: a runtime whose tasks can crash together.
    pub fn process(&self) -> Arc<Process> {
        Scheduler::process(&self.0)
    }

    /// How much time has passed.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// The number of unfinished tasks, including threads.
    pub fn tasks(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Polls one task. Returns false if no task can run before time passes.
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
            // The task finished, or its process crashed while it was polled.
            (Poll::Ready(()) | Poll::Pending, _) => Some((state.tasks.remove(&number), future)),
        };
        // Drop the task after the lock is released: its destructor may wake and spawn others.
        drop(state);
        drop(ended);
        true
    }

    /// Runs tasks and advances time until `check` returns a value; `None` if it returned none within `limit`.
    /// Calls `check` before the first step, after each step and after each advance of time.
    ///
    /// # Panics
    /// If tasks run for ever without time passing.
    pub fn run_until<T>(&self, limit: Duration, mut check: impl FnMut() -> Option<T>) -> Option<T> {
        let end = self.now() + limit;
        let mut steps = 0;
        loop {
            if let Some(found) = check() {
                return Some(found);
            }
            if self.step() {
                steps += 1;
                assert!(steps < MAX_STEPS_PER_INSTANT, "the tasks wake each other for ever");
            } else if self.0.advance(end) {
                steps = 0;
            } else {
                return None;
            }
        }
    }

    /// Runs tasks for this much virtual time.
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

struct Scheduler(Mutex<SchedulerState>);

struct SchedulerState {
    now: Duration,
    tasks: BTreeMap<u64, VirtualTask>,
    /// In the order of wake-ups, or of spawning if the order is chosen.
    runnable: Vec<u64>,
    timers: BTreeMap<(Duration, u64), Waker>,
    crashed: BTreeSet<u64>,
    /// Paused parts: the process, and whether its threads are paused or its other tasks.
    paused: BTreeSet<(u64, bool)>,
    last_number: u64,
    random: u64,
    order: PollOrder,
}

/// Which task is polled next.
enum PollOrder {
    /// The one that was woken first.
    Woken,
    /// The one that the function returns.
    Chosen(ChooseTask),
}

struct VirtualTask {
    process: u64,
    /// Whether the task stands for a thread.
    is_thread: bool,
    /// `None` while the task is polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.0.lock()
    }

    fn process(self: &Arc<Self>) -> Arc<Process> {
        let number = self.lock().next_number();
        Arc::new(Process { scheduler: Arc::clone(self), number, clocks: Mutex::default() })
    }

    fn spawn(self: &Arc<Self>, process: u64, is_thread: bool, future: BoxFuture<'static, ()>) -> Option<u64> {
        let mut state = self.lock();
        if state.crashed.contains(&process) {
            // The destructor of the future may spawn or wake a task, which takes the lock.
            drop(state);
            drop(future);
            return None;
        }
        let number = state.next_number();
        let waker = Waker::from(Arc::new(TaskWaker { scheduler: Arc::downgrade(self), task: number }));
        state.tasks.insert(number, VirtualTask { process, is_thread, future: Some(future), waker });
        state.make_runnable(number);
        Some(number)
    }

    /// Advances time to the next timer, or to `end`. Returns false if no timer was due before the end.
    fn advance(&self, end: Duration) -> bool {
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

    fn drop_tasks(&self, predicate: impl Fn(&u64, &VirtualTask) -> bool) {
        // Drop the tasks after the lock is released: their destructors may wake and spawn others.
        let dropped: Vec<_> = {
            let mut state = self.lock();
            state.tasks.extract_if(.., |number, task| predicate(number, task)).collect()
        };
        drop(dropped);
    }

    fn crash(&self, process: u64) {
        self.lock().crashed.insert(process);
        self.drop_tasks(|_, task| task.process == process);
    }
}

impl SchedulerState {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn make_runnable(&mut self, number: u64) {
        let position = match &self.order {
            PollOrder::Woken if self.runnable.contains(&number) => return,
            PollOrder::Woken => self.runnable.len(),
            PollOrder::Chosen(_) => match self.runnable.binary_search(&number) {
                Ok(_) => return,
                Err(position) => position,
            },
        };
        self.runnable.insert(position, number);
    }

    fn next_task(&mut self) -> Option<(u64, BoxFuture<'static, ()>, Waker)> {
        // Crashed and cancelled tasks leave their numbers behind.
        self.runnable.retain(|number| self.tasks.contains_key(number));
        while let Some(position) = self.next_position() {
            let number = self.runnable.remove(position);
            if let Some(task) = self.tasks.get_mut(&number)
                && let Some(future) = task.future.take()
            {
                return Some((number, future, task.waker.clone()));
            }
        }
        None
    }

    /// The position in `runnable` of the task to poll next. Skips paused tasks.
    fn next_position(&mut self) -> Option<usize> {
        let (tasks, paused) = (&self.tasks, &self.paused);
        let is_ready =
            |number: &u64| tasks.get(number).is_some_and(|task| !paused.contains(&(task.process, task.is_thread)));
        let ready: Vec<usize> = (0..self.runnable.len()).filter(|at| is_ready(&self.runnable[*at])).collect();
        match &mut self.order {
            PollOrder::Woken => ready.first().copied(),
            PollOrder::Chosen(_) if ready.is_empty() => None,
            PollOrder::Chosen(choose) => Some(ready[choose(ready.len())]),
        }
    }

    /// The next number of a SplitMix64 generator.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "Scheduler({:?}, {} tasks)", state.now, state.tasks.len())
    }
}

struct TaskWaker {
    scheduler: Weak<Scheduler>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let Some(scheduler) = self.scheduler.upgrade() else {
            return;
        };
        scheduler.lock().make_runnable(self.task);
    }
}
