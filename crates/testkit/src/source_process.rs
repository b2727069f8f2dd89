//! Workers on real sources, whose processes a test can kill and stop.
//!
//! The source runs in a child process, which is this test binary again: `main` calls [`serve_source`] first. The worker
//! and its handler run in this process, on a thread of their own, and see a source. So a crash is a SIGKILL and a pause
//! a SIGSTOP to everything that talks to the broker, and the ledger can stay in the memory of the test.
//!
//! ```text
//! executor.rs  the thread of a worker
//! child.rs     the child process: serves its source over a socket
//! remote.rs    the source of the child process, as this process sees it
//! wire.rs      what goes over the socket
//! ```

mod child;
mod executor;
mod remote;
mod wire;

use std::env;
use std::fmt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::broker::Source;
use hapax_core::runtime::Runtime;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixListener;

use crate::suite::source::WorkerHost;
use executor::Executor;
use remote::RemoteSource;

pub use child::{OpenedSource, serve_source};

/// The variables that tell a child process its socket, and which source to open.
const SOCKET: &str = "HAPAX_TEST_SOURCE_SOCKET";
const TARGET: &str = "HAPAX_TEST_SOURCE_TARGET";

/// A process with a worker. It ends when it is dropped.
pub struct SourceProcess {
    target: String,
    executor: Executor,
    child: Mutex<Option<Child>>,
    /// Whether a stopped process keeps nobody else from working.
    is_harmless: Box<dyn Fn() -> bool + Send + Sync>,
}

impl SourceProcess {
    /// A process whose source is the one that [`serve_source`] opens for `target`.
    pub fn start(target: impl Into<String>) -> Self {
        let is_harmless = Box::new(|| true);
        Self { target: target.into(), executor: Executor::start(), child: Mutex::default(), is_harmless }
    }

    /// Stops the process only at moments for which `is_harmless` holds: a process that is stopped while it has a lock
    /// of a file stops all others, too.
    #[must_use]
    pub fn paused_if(mut self, is_harmless: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.is_harmless = Box::new(is_harmless);
        self
    }

    /// Stops only what talks to the broker.
    pub fn stop_source(&self) {
        self.signal(Signal::STOP);
        while !(self.is_harmless)() {
            self.signal(Signal::CONT);
            std::thread::yield_now();
            self.signal(Signal::STOP);
        }
    }

    /// Lets it go on.
    pub fn continue_source(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.child.lock() {
            kill_process(Pid::from_child(child), signal).expect("the child process is there");
        }
    }

    fn spawn(&self, socket: &std::path::Path) {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.env(SOCKET, socket).env(TARGET, &self.target).stdin(Stdio::null());
        *self.child.lock() = Some(command.spawn().expect("this program can be started again"));
    }

    fn kill(&self) {
        if let Some(mut child) = self.child.lock().take() {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[async_trait]
impl WorkerHost for SourceProcess {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.executor.runtime()
    }

    async fn connect(&self) -> Box<dyn Source> {
        let folder = TempDir::new().expect("a folder for a socket");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        self.spawn(&path);
        let (stream, _) = listener.accept().await.expect("the child process connects");
        // Its input and output belong to the executor of the worker.
        let stream = stream.into_std().expect("a socket");
        Box::new(RemoteSource::open(stream, &self.executor).await)
    }

    fn crash(&self) {
        self.kill();
        self.executor.end();
    }

    fn pause(&self) {
        self.executor.pause();
        self.stop_source();
    }

    fn resume(&self) {
        self.continue_source();
        self.executor.resume();
    }
}

impl Drop for SourceProcess {
    fn drop(&mut self) {
        self.crash();
    }
}

impl fmt::Debug for SourceProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceProcess").field("child", &self.child.lock()).finish_non_exhaustive()
    }
}
