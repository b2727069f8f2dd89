use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime};

use super::World;

/// How the clocks of a process differ from the world's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// How far the wall clock is ahead, or behind, in microseconds.
    pub wall_ahead: i64,
    /// How far the boot clock is ahead.
    pub boot_ahead: Duration,
    /// How much faster than the world's time the boot clock runs, in millionths.
    pub drift: i32,
}

/// What of a process can stand still while the rest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Everything but its threads: the executor is blocked.
    Tasks,
    /// Its threads.
    Threads,
}

/// When the world begins, by its wall clock: the first second of 2026.
const START: Timestamp = Timestamp(1_767_225_600_000_000);

/// A process of a world. Its clocks are the world's, until they are set.
#[derive(Debug)]
pub struct Process {
    pub(super) world: Arc<World>,
    pub(super) number: u64,
    pub(super) clocks: Mutex<Clocks>,
}

impl Process {
    /// Ends it: drops every task where it stands, and each that is still to be spawned.
    pub fn crash(&self) {
        self.world.crash(self.number);
    }

    /// Drops every task where it stands, but threads. What that spawns goes on.
    pub fn abort_tasks(&self) {
        self.world.drop_tasks(|_, task| task.process == self.number && !task.thread);
    }

    /// Lets a part of it stand still. Time passes meanwhile, and what wakes it waits until it is resumed.
    pub fn pause(&self, part: Part) {
        self.world.lock().paused.insert((self.number, part == Part::Threads));
    }

    /// Lets a part go on that stood still.
    pub fn resume(&self, part: Part) {
        self.world.lock().paused.remove(&(self.number, part == Part::Threads));
    }

    /// Sets its clocks. A boot clock that goes back is nothing a system shows.
    pub fn set_clocks(&self, clocks: Clocks) {
        *self.clocks.lock().unwrap_or_else(PoisonError::into_inner) = clocks;
    }

    /// Moves its wall clock by so many microseconds.
    pub fn steps_wall(&self, by: i64) {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).wall_ahead += by;
    }

    /// Another process of the same world.
    pub fn sibling(&self) -> Arc<Self> {
        World::process(&self.world)
    }

    fn clocks(&self) -> Clocks {
        *self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of its tasks have not ended, threads not counted.
    pub fn tasks(&self) -> usize {
        let state = self.world.lock();
        state.tasks.values().filter(|task| task.process == self.number && !task.thread).count()
    }

    /// Starts a task whose output is kept.
    pub fn start<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Started<T> {
        let output = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&output);
        let task = async move {
            let output = future.await;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        };
        let number = self.world.spawn(self.number, false, Box::pin(task));
        Started { world: Arc::clone(&self.world), number, output }
    }
}

impl Runtime for Process {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.world.spawn(self.number, false, task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.world.lock();
        let (due, number) = (state.now + duration, state.number());
        Box::pin(Sleep { world: Arc::clone(&self.world), due, number })
    }

    fn thread(&self, _name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.world.spawn(self.number, true, task);
        Ok(())
    }

    fn blocking(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        panic!("virtual time has one thread, so {name} cannot block one");
    }

    fn boottime_now(&self) -> Duration {
        let (now, clocks) = (self.world.lock().now, self.clocks());
        let drifted = now * clocks.drift.unsigned_abs() / 1_000_000;
        clocks.boot_ahead + if clocks.drift < 0 { now - drifted } else { now + drifted }
    }

    fn wall_now(&self) -> Timestamp {
        let now = START.plus(self.world.lock().now);
        Timestamp(now.0.saturating_add_signed(self.clocks().wall_ahead))
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        let mut state = self.world.lock();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&state.random().to_be_bytes()[..chunk.len()]);
        }
    }
}

/// A task that was started with [`Process::start`].
#[derive(Debug)]
pub struct Started<T> {
    world: Arc<World>,
    /// None if its process had crashed before.
    number: Option<u64>,
    output: Arc<Mutex<Option<T>>>,
}

impl<T> Started<T> {
    /// Takes the output, once there is one.
    pub fn output(&self) -> Option<T> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Drops its future where it stands.
    pub fn cancel(&self) {
        self.world.drop_tasks(|number, _| Some(*number) == self.number);
    }
}

struct Sleep {
    world: Arc<World>,
    due: Duration,
    number: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.world.lock();
        if state.now >= self.due {
            return Poll::Ready(());
        }
        let before = state.timers.insert((self.due, self.number), cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _waker = self.world.lock().timers.remove(&(self.due, self.number));
    }
}
