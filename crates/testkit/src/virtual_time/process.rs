use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime};
use parking_lot::Mutex;

use super::Scheduler;

/// How the clocks of a process differ from virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockOffsets {
    /// How far the wall clock is ahead, in microseconds. Negative: behind.
    pub wall_ahead: i64,
    /// How far the boot clock is ahead.
    pub boot_ahead: Duration,
    /// How much faster than virtual time the boot clock runs, in millionths.
    pub drift: i32,
}

/// A part of a process that can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessPart {
    /// All tasks but threads, as if the executor were blocked.
    Tasks,
    /// The threads.
    Threads,
}

/// The wall clock at the start of virtual time: the first second of 2026.
const START: Timestamp = Timestamp(1_767_225_600_000_000);

/// A process under virtual time. Its clocks show virtual time until a test sets them.
#[derive(Debug)]
pub struct Process {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) number: u64,
    pub(super) clocks: Mutex<ClockOffsets>,
}

impl Process {
    /// Crashes the process: drops all of its tasks, and every task that is spawned later.
    pub fn crash(&self) {
        self.scheduler.crash(self.number);
    }

    /// Drops all tasks but threads. Tasks that their destructors spawn keep running.
    pub fn abort_tasks(&self) {
        self.scheduler.drop_tasks(|_, task| task.process == self.number && !task.is_thread);
    }

    /// Pauses a part of the process. Time continues, and its wake-ups take effect after it is resumed.
    pub fn pause(&self, part: ProcessPart) {
        self.scheduler.lock().paused.insert((self.number, part == ProcessPart::Threads));
    }

    /// Resumes a paused part.
    pub fn resume(&self, part: ProcessPart) {
        self.scheduler.lock().paused.remove(&(self.number, part == ProcessPart::Threads));
    }

    /// Sets the clocks. A real system's boot clock never steps back.
    pub fn set_clocks(&self, clocks: ClockOffsets) {
        *self.clocks.lock() = clocks;
    }

    /// Moves the wall clock by this many microseconds.
    pub fn step_wall(&self, by: i64) {
        self.clocks.lock().wall_ahead += by;
    }

    /// Creates another process under the same virtual time.
    pub fn sibling(&self) -> Arc<Self> {
        Scheduler::process(&self.scheduler)
    }

    fn clocks(&self) -> ClockOffsets {
        *self.clocks.lock()
    }

    /// The number of unfinished tasks, without threads.
    pub fn tasks(&self) -> usize {
        let state = self.scheduler.lock();
        state.tasks.values().filter(|task| task.process == self.number && !task.is_thread).count()
    }

    /// Spawns a task and keeps its output.
    pub fn start<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> TaskHandle<T> {
        let output = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&output);
        let task = async move {
            let output = future.await;
            *slot.lock() = Some(output);
        };
        let number = self.scheduler.spawn(self.number, false, Box::pin(task));
        TaskHandle { scheduler: Arc::clone(&self.scheduler), number, output }
    }
}

impl Runtime for Process {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.scheduler.spawn(self.number, false, task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.scheduler.lock();
        let (due, number) = (state.now + duration, state.next_number());
        Box::pin(Sleep { scheduler: Arc::clone(&self.scheduler), due, number })
    }

    fn thread(&self, _name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.scheduler.spawn(self.number, true, task);
        Ok(())
    }

    fn blocking(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        panic!("virtual time has one thread, so {name} cannot have a thread");
    }

    fn boottime_now(&self) -> Duration {
        let (now, clocks) = (self.scheduler.lock().now, self.clocks());
        let drifted = now * clocks.drift.unsigned_abs() / 1_000_000;
        clocks.boot_ahead + if clocks.drift < 0 { now - drifted } else { now + drifted }
    }

    fn wall_now(&self) -> Timestamp {
        let now = START.plus(self.scheduler.lock().now);
        Timestamp(now.0.saturating_add_signed(self.clocks().wall_ahead))
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        let mut state = self.scheduler.lock();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&state.random().to_be_bytes()[..chunk.len()]);
        }
    }
}

/// A handle on a task that [`Process::start`] spawned.
#[derive(Debug)]
pub struct TaskHandle<T> {
    scheduler: Arc<Scheduler>,
    /// `None` if the process had already crashed.
    number: Option<u64>,
    output: Arc<Mutex<Option<T>>>,
}

impl<T> TaskHandle<T> {
    /// Takes the output, if the task has finished.
    pub fn output(&self) -> Option<T> {
        self.output.lock().take()
    }

    /// Drops the task's future.
    pub fn cancel(&self) {
        self.scheduler.drop_tasks(|number, _| Some(*number) == self.number);
    }
}

struct Sleep {
    scheduler: Arc<Scheduler>,
    due: Duration,
    number: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.scheduler.lock();
        if state.now >= self.due {
            return Poll::Ready(());
        }
        // A replaced waker is dropped after the lock is released.
        let before = state.timers.insert((self.due, self.number), cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // The name keeps the waker until the lock is released: dropping a waker may drop a future that takes the lock.
        let _waker = self.scheduler.lock().timers.remove(&(self.due, self.number));
    }
}
