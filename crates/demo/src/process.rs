//! The processes that the demo starts.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::{env, process};

use anyhow::{Context, Result, anyhow, bail};
use tokio::process::Command;

use super::parent_death::DEMO_PROCESS;

/// A command that runs this program, writes its log to this file, and ends with the demo.
pub(super) fn command(log: &Path) -> Result<Command> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let program = env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    remove_settings(&mut command);
    command
        .env(DEMO_PROCESS, process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    Ok(command)
}

/// Prints the last lines of the log of a process on standard error.
pub(super) fn show_end_of_log(name: &str, log: &Path) {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    eprintln!("The log of {name} ends with:");
    for line in &lines[lines.len().saturating_sub(20)..] {
        eprintln!("  {}", line.replace(char::is_control, " "));
    }
}

/// Removes the settings in the environment: they are meant for other processes, and the demo gives its own flags.
fn remove_settings(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let is_setting = name.to_string_lossy().starts_with("HAPAX_");
        if is_setting && name != "HAPAX_LOG" && name != "HAPAX_CHAOS" {
            command.env_remove(name);
        }
    }
    if env::var_os("HAPAX_LOG").is_none() {
        command.env("HAPAX_LOG", "warn");
    }
}

/// Returns addresses that stay free while the process that listens there is down. Their ports lie below the range from
/// which the system takes ports for outgoing connections, or a client could get one of them during an outage.
pub(super) fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    // Demos that start at the same time begin at different ports.
    let first = process::id().wrapping_mul(7919) % PORTS.len() as u32;
    // A port is free if it can be bound; a failed bind adds nothing.
    let mut listeners = Vec::new();
    for step in 0..PORTS.len() as u32 {
        let port = PORTS.start + ((first + step) % PORTS.len() as u32) as u16;
        listeners.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if listeners.len() == N {
            let addresses: Vec<SocketAddr> =
                listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?;
            return addresses.try_into().map_err(|_| anyhow!("a port too many was found"));
        }
    }
    bail!("no free port from {} to {}", PORTS.start, PORTS.end);
}

const PORTS: std::ops::Range<u16> = 20_000..32_000;
