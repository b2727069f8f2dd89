use std::cell::RefCell;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::harness::{Figures, Limit, Run, Subject};

/// What wrk sends, by the name of its script.
const NEW_KEYS: &str = include_str!("../wrk/new.lua");
const REPLAYS: &str = include_str!("../wrk/replay.lua");
const UNPROTECTED: &str = include_str!("../wrk/get.lua");

const SECONDS: u32 = 2;
const CONNECTIONS: u32 = 64;

/// The gateway on both stores and nginx, beside a forwarder that does nothing else; client, API and proxy share the cores.
pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let tools = Rc::new(Tools::unpacked()?);
    let api = Rc::new(Process::start("api", |command, address| {
        command.arg("api").arg(address.to_string());
        Ok(())
    })?);
    let forwarder = Rc::new(Process::start("forwarder", |command, address| {
        command.args(["forwarder", &address.to_string(), &api.address.to_string()]);
        Ok(())
    })?);
    let memory = Rc::new(gateway(&api, "memory:".into())?);
    let sqlite = Rc::new(gateway(&api, format!("sqlite://{}", tools.folder.path().join("hapax.db").display()))?);
    let nginx = Rc::new(tools.nginx(&api)?);
    let subject = |name, what, proxy: &Rc<Process>, script: &'static str, at_least| Subject {
        name,
        what,
        run: wrk(&tools, proxy, &api, script),
        limit: Some(Limit {
            what: "the same through a forwarder that does nothing else",
            run: wrk(&tools, &forwarder, &api, script),
            at_least,
        }),
    };
    Ok(vec![
        subject("gateway, new keys, memory", "a POST with a new key", &memory, NEW_KEYS, Some(0.75)),
        subject(
            "gateway, new keys, SQLite",
            "a POST with a new key, fsync before each answer",
            &sqlite,
            NEW_KEYS,
            None,
        ),
        subject("gateway, replays, memory", "a POST with the same key", &memory, REPLAYS, None),
        subject("gateway, replays, SQLite", "a POST with the same key", &sqlite, REPLAYS, None),
        subject("gateway, unprotected", "a GET", &memory, UNPROTECTED, Some(0.95)),
        subject("nginx, new keys", "the same POST through nginx as a plain proxy", &nginx, NEW_KEYS, None),
        subject("nginx, unprotected", "the same GET through nginx as a plain proxy", &nginx, UNPROTECTED, None),
    ])
}

fn gateway(api: &Rc<Process>, store: String) -> anyhow::Result<Process> {
    let upstream = format!("http://{}", api.address);
    Process::start("../hapax", move |command, address| {
        command.args(["gateway", "--upstream", &upstream, "--store", &store, "--listen", &address.to_string()]);
        // The copies of the first replay wait for its answer.
        command.args(["--admin", &free_address()?.to_string(), "--wait", "5s"]).env("HAPAX_LOG", "warn");
        Ok(())
    })
}

/// wrk and nginx, unpacked.
struct Tools {
    root: PathBuf,
    folder: TempDir,
    runs: RefCell<u32>,
}

impl Tools {
    fn unpacked() -> anyhow::Result<Self> {
        let output =
            Command::new("fixtures/unpack.sh").args(["proxies", "wrk", "nginx"]).stderr(Stdio::inherit()).output();
        let output = output.context("fixtures/unpack.sh unpacks wrk and nginx")?;
        ensure!(output.status.success(), "wrk and nginx cannot be unpacked");
        let root = String::from_utf8(output.stdout)?.trim().into();
        Ok(Self { root, folder: tempfile::tempdir()?, runs: RefCell::default() })
    }

    fn command(&self, program: &str) -> Command {
        let libraries =
            ["usr/lib", "lib"].map(|lib| self.root.join(lib).join(format!("{}-linux-gnu", std::env::consts::ARCH)));
        let mut command = Command::new(self.root.join(program));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("folders without a colon"));
        command
    }

    /// One process, so that its time is the worker's.
    fn nginx(&self, api: &Process) -> anyhow::Result<Process> {
        let folder = self.folder.path();
        Process::from(free_address()?, |address| {
            let configuration = format!(
                "daemon off; master_process off; pid nginx.pid; error_log stderr error;
                 events {{ worker_connections 1024; }}
                 http {{ access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
                   upstream api {{ server {}; keepalive 64; }}
                   server {{ listen {address}; location / {{ proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}",
                api.address
            );
            fs::write(folder.join("nginx.conf"), configuration)?;
            let mut command = self.command("usr/sbin/nginx");
            command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "stderr"]);
            Ok(command)
        })
    }
}

/// A server of this machine's own, ended when it is dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    /// This binary with a verb, or one beside it.
    fn start(
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

    fn from(address: SocketAddr, command: impl FnOnce(SocketAddr) -> anyhow::Result<Command>) -> anyhow::Result<Self> {
        let child = command(address)?.stdin(Stdio::null()).spawn()?;
        let mut process = Self { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(begun.elapsed() < Duration::from_secs(30), "nobody listens at {address}");
            std::thread::yield_now();
        }
        Ok(process)
    }

    /// The time it has spent on a core, in ticks of 10 ms.
    fn ticks(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has a name in brackets")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A few seconds of load from one thread of wrk; the API is kept alive for as long as the run is.
fn wrk(tools: &Rc<Tools>, proxy: &Rc<Process>, api: &Rc<Process>, script: &'static str) -> Run {
    let (tools, proxy, api) = (Rc::clone(tools), Rc::clone(proxy), Rc::clone(api));
    Box::new(move || {
        let path = tools.folder.path().join("script.lua");
        fs::write(&path, script)?;
        *tools.runs.borrow_mut() += 1;
        let before = proxy.ticks()?;
        let told = load(&tools, &proxy, &path)?;
        ensure!(!told.contains("Non-2xx") && !told.contains("Socket errors"), "not every answer was good: {told}");
        let requests = number(&told, " requests in")?;
        let microseconds = (proxy.ticks()? - before) * 10_000.0 / requests;
        let api_alive = api.ticks().is_ok();
        ensure!(api_alive, "the API has ended");
        Ok(Figures {
            rate: number_after(&told, "Requests/sec:")?,
            note: format!("{microseconds:.0} us of CPU a request in the proxy"),
        })
    })
}

fn load(tools: &Tools, proxy: &Process, script: &Path) -> anyhow::Result<String> {
    let (seconds, connections) = (format!("-d{SECONDS}s"), format!("-c{CONNECTIONS}"));
    let output = tools
        .command("usr/bin/wrk")
        .args(["-t1", &connections, &seconds, "-s"])
        .arg(script)
        .arg(format!("http://{}/", proxy.address))
        .args(["--", &format!("{}-{}", std::process::id(), tools.runs.borrow())])
        .output()?;
    ensure!(output.status.success(), "wrk: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The number that stands before these words.
fn number(told: &str, words: &str) -> anyhow::Result<f64> {
    let (before, _) = told.split_once(words).context("wrk says how many requests it sent")?;
    Ok(before.rsplit_once([' ', '\n']).map_or(before, |(_, number)| number).trim().parse()?)
}

fn number_after(told: &str, words: &str) -> anyhow::Result<f64> {
    let (_, after) = told.split_once(words).context("wrk says how fast it was")?;
    Ok(after.lines().next().unwrap_or_default().trim().parse()?)
}
