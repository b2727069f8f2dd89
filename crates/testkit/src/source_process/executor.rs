use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use hapax_core::runtime::{Runtime, Tokio};
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::Notify;

/// A thread that runs the tasks of one worker.
pub(super) struct Executor {
    runtime: Arc<Tokio>,
    ended: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Dropped to let a paused thread go on.
    pause: Mutex<Option<mpsc::Sender<()>>>,
}

impl Executor {
    pub(super) fn start() -> Self {
        let executor = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let runtime = {
            let _inside = executor.enter();
            Arc::new(Tokio::current())
        };
        let ended = Arc::new(Notify::new());
        let end = Arc::clone(&ended);
        let body = move || executor.block_on(end.notified());
        let thread = std::thread::Builder::new().name("worker".into()).spawn(body).expect("a thread");
        Self { runtime, ended, thread: Mutex::new(Some(thread)), pause: Mutex::default() }
    }

    pub(super) fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime) as _
    }

    /// Stops all tasks. Returns when none of them runs.
    pub(super) fn pause(&self) {
        let (resume, resumed) = mpsc::channel::<()>();
        let (stopped, is_stopped) = mpsc::channel();
        self.runtime.spawn(Box::pin(async move {
            // The whole thread waits, and all of its tasks with it.
            let _ = stopped.send(());
            let _ = resumed.recv();
        }));
        let _ = is_stopped.recv();
        *self.pause.lock() = Some(resume);
    }

    /// Lets the tasks go on.
    pub(super) fn resume(&self) {
        drop(self.pause.lock().take());
    }

    /// Drops all tasks. Returns when none is left.
    pub(super) fn end(&self) {
        self.ended.notify_one();
        self.resume();
        if let Some(thread) = self.thread.lock().take() {
            thread.join().expect("a panic of a task does not end the thread");
        }
    }
}
