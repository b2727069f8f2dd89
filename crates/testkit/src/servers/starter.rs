//! Runs the scripts in `fixtures/`.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use parking_lot::Mutex;

/// The script that starts the server of a service.
pub(super) fn script(service: &str) -> Command {
    fixture(&format!("{service}/server.sh"))
}

/// A program that was unpacked with a service.
pub(super) fn program(service: &str, program: &str) -> Command {
    let mut command = fixture("run.sh");
    command.args([service, program]);
    command
}

fn fixture(script: &str) -> Command {
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
    let mut command = Command::new(fixtures.join(script));
    command.env("HAPAX_PARENT", std::process::id().to_string());
    command
}

type StartRequest = (Command, Sender<io::Result<Child>>);

/// Starts all servers. A server dies with the *thread* that started it, and a test's thread ends with its test, so one
/// thread that never ends starts them all.
static STARTER: LazyLock<Mutex<Sender<StartRequest>>> = LazyLock::new(|| {
    let (requests, received) = channel::<StartRequest>();
    thread::spawn(move || {
        for (mut command, started) in received {
            // A failed send means that the caller's thread has ended.
            let _ = started.send(command.spawn());
        }
    });
    Mutex::new(requests)
});

/// Starts a process that dies with this one.
pub(super) fn start(command: Command) -> io::Result<Child> {
    let (sender, started) = channel();
    let sent = STARTER.lock().send((command, sender));
    sent.map_err(io::Error::other)?;
    started.recv().map_err(io::Error::other)?
}
