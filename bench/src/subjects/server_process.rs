//! The processes that take part in a measurement.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// A server process, killed when it is dropped.
pub(super) struct ServerProcess {
    child: Child,
    pub(super) address: SocketAddr,
}

impl ServerProcess {
    /// Starts this binary with arguments, or with `../` another binary in its folder.
    pub(super) fn start(
        name: &str,
        arguments: impl FnOnce(&mut Command, SocketAddr) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let program = name.strip_prefix("../").map_or_else(|| own.clone(), |beside| own.with_file_name(beside));
        Self::from(free_address()?, |address| {
            let mut command = Command::new(program);
            arguments(&mut command, address)?;
            Ok(command)
        })
        .with_context(|| format!("the {name} does not start"))
    }

    pub(super) fn from(
        address: SocketAddr,
        command: impl FnOnce(SocketAddr) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Self> {
        let child = command(address)?.stdin(Stdio::null()).spawn()?;
        let mut process = Self { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.child.try_wait()? {
                bail!("the process ended with {status}");
            }
            ensure!(begun.elapsed() < Duration::from_secs(30), "no process listens at {address}");
            std::thread::yield_now();
        }
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time of the process, in ticks of 10 ms.
    pub(super) fn ticks(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has no name in brackets")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address on which nothing listens yet.
pub(super) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
