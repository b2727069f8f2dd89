//! Starts the scripts in `fixtures/`.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

/// The script that becomes the server of a service.
pub(super) fn script(service: &str) -> Command {
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
    let mut command = Command::new(fixtures.join(service).join("server.sh"));
    command.env("HAPAX_PARENT", std::process::id().to_string());
    command
}

type Order = (Command, Sender<io::Result<Child>>);

/// A server dies with the *thread* that started it, and the thread of a test ends with the test: a thread that stays starts them all.
static STARTER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (orders, received) = channel::<Order>();
    thread::spawn(move || {
        for (mut command, started) in received {
            // Who asked may have given up.
            let _ = started.send(command.spawn());
        }
    });
    Mutex::new(orders)
});

/// Starts a process that lives at most as long as this one.
pub(super) fn start(command: Command) -> io::Result<Child> {
    let (sender, started) = channel();
    let sent = STARTER.lock().unwrap_or_else(PoisonError::into_inner).send((command, sender));
    sent.map_err(io::Error::other)?;
    started.recv().map_err(io::Error::other)?
}
