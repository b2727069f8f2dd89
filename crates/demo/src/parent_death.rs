//! Ends the processes of a demo when the demo dies without stopping it, for instance by `kill -9`.

use std::env;
use std::process;

use rustix::process::{Pid, getppid};

/// The variable with the process id of the demo.
pub(super) const DEMO_PROCESS: &str = "HAPAX_DEMO_PROCESS";

/// Ends this process with the demo that started it. Does nothing in any other process.
pub fn end_with_demo() {
    let demo = env::var(DEMO_PROCESS).ok().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
    let Some(demo) = demo else { return };
    watch(demo);
    // The demo may have died before its death was watched.
    if getppid() != Some(demo) {
        process::exit(1);
    }
}

#[cfg(target_os = "linux")]
fn watch(_demo: Pid) {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // The system sends the signal when the main thread of the demo ends: that thread starts every process.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!("this process may outlive its demo: {error}");
    }
}

/// Other systems have no such signal. A process whose parent has died gets another parent.
#[cfg(not(target_os = "linux"))]
fn watch(demo: Pid) {
    std::thread::spawn(move || {
        while getppid() == Some(demo) {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        process::exit(1);
    });
}
