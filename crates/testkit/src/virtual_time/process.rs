use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime};

use super::World;

/// When the world begins, by its wall clock: the first second of 2026.
const START: Timestamp = Timestamp(1_767_225_600_000_000);

/// A process of a world. Its clocks are the world's.
#[derive(Debug)]
pub struct Process {
    pub(super) world: Arc<World>,
    pub(super) number: u64,
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

    fn boot(&self) -> Duration {
        self.world.lock().now
    }

    fn wall(&self) -> Timestamp {
        START.plus(self.boot())
    }

    fn fill(&self, bytes: &mut [u8]) {
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
