//! A server that outlives the command that started it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a server may take to listen or to end.
const LIMIT: Duration = Duration::from_secs(30);

/// How a server is started, as `service.toml` in the folder of its scripts says.
struct ServiceFile {
    usual_port: u16,
    /// The URL with `{address}` in place of the server's address.
    url: String,
    /// The signal that ends the server.
    signal: String,
}

impl ServiceFile {
    fn read(scripts: &Path) -> Result<Self, String> {
        let path = scripts.join("service.toml");
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("`up` starts only services with a {}: {error}", path.display()))?;
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
            Some(value.trim().trim_matches('"').to_owned())
        };
        let needed = |name: &str| value(name).ok_or_else(|| format!("{} has no {name}", path.display()));
        let usual_port: u16 =
            needed("port")?.parse().map_err(|_| format!("{}: the port is no number", path.display()))?;
        Ok(Self { usual_port, url: needed("url")?, signal: value("signal").unwrap_or_else(|| "TERM".to_owned()) })
    }
}

/// A running server, read from the file that `start` wrote.
#[derive(Debug)]
pub(super) struct RunningServer {
    file: PathBuf,
    pid: String,
    /// The start time of the process in clock ticks. It tells the server from a later process with the same id.
    began: String,
    url: String,
    signal: String,
}

impl fmt::Display for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}, log {})", self.url, self.pid, self.file.with_file_name("log").display())
    }
}

impl RunningServer {
    /// Reads the server of this folder; nothing if it does not run.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let file = folder.join("running");
        let text = fs::read_to_string(&file).ok()?;
        let [pid, began, url, signal] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let [pid, began, url, signal] = [pid, began, url, signal].map(str::to_owned);
        let running = Self { file, pid, began, url, signal };
        running.is_there().then_some(running)
    }

    /// Ends the server and waits until its process has ended.
    pub(super) fn end(&self) -> Result<(), String> {
        let killed = Command::new("kill").args([&format!("-{}", self.signal), &self.pid]).status();
        if !killed.is_ok_and(|status| status.success()) {
            return Err(format!("cannot end process {}", self.pid));
        }
        let begun = Instant::now();
        while self.is_there() {
            if begun.elapsed() > LIMIT {
                return Err(format!(
                    "process {} does not end; its log: {}",
                    self.pid,
                    self.file.with_file_name("log").display()
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))
    }

    fn is_there(&self) -> bool {
        began(&self.pid).is_some_and(|began| began == self.began)
    }
}

/// The start time of a process that runs: field 22 of its `stat` line. The name before it may contain blanks.
fn began(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    (state != "Z" && state != "X").then(|| words.nth(18).map(str::to_owned)).flatten()
}

/// Starts the server of these scripts and waits until it listens. Its data and its log go to `folder`.
pub(super) fn start(scripts: &Path, folder: &Path) -> Result<RunningServer, String> {
    let service = ServiceFile::read(scripts)?;
    launch(&scripts.join("server.sh"), folder, service).map_err(|error| format!("{}: {error}", scripts.display()))
}

fn launch(script: &Path, folder: &Path, service: ServiceFile) -> io::Result<RunningServer> {
    let data = folder.join("data");
    fs::create_dir_all(&data)?;
    let address = free(service.usual_port)?;
    let log = File::create(folder.join("log"))?;
    let mut command = Command::new(script);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"]).arg(&data);
    // A process group of its own, so that Ctrl-C for this command does not end the server.
    command.process_group(0).env("HAPAX_STAYS", "1").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn()?;
    if let Err(error) = listens(&mut child, address) {
        let _ = (child.kill(), child.wait());
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        return Err(io::Error::other(format!("{error}; its log:\n{log}")));
    }
    let pid = child.id().to_string();
    let began = began(&pid).ok_or_else(|| io::Error::other("it has ended"))?;
    let url = service.url.replace("{address}", &address.to_string());
    let (file, signal) = (folder.join("running"), service.signal);
    fs::write(&file, format!("{pid} {began} {url} {signal}\n"))?;
    Ok(RunningServer { file, pid, began, url, signal })
}

/// The usual port, or a free one if it is in use.
fn free(port: u16) -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", port)).or_else(|_| TcpListener::bind("127.0.0.1:0"))?.local_addr()
}

fn listens(child: &mut Child, address: SocketAddr) -> io::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it ended: {status}")));
        }
        if TcpStream::connect(address).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(io::Error::other("it does not listen"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that only waits, recorded in a folder of its own.
    fn recorded(name: &str, change: impl Fn(String) -> String) -> (Child, PathBuf) {
        let folder = std::env::temp_dir().join(format!("hapax-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().to_string();
        fs::write(folder.join("running"), format!("{pid} {} url TERM\n", change(began(&pid).unwrap()))).unwrap();
        (child, folder)
    }

    #[test]
    fn a_server_is_started_as_its_file_says() {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures"));
        let postgres = ServiceFile::read(&fixtures.join("postgres")).unwrap();
        assert_eq!((postgres.usual_port, &*postgres.signal), (5432, "INT"));
        assert_eq!(postgres.url, "postgres://postgres@{address}/postgres");
        for folder in fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()) {
            if folder.join("service.toml").exists() {
                let service = ServiceFile::read(&folder).unwrap();
                assert!(service.url.contains("{address}"), "{}", folder.display());
            }
        }
        let error = ServiceFile::read(&fixtures.join("chromium")).err().unwrap();
        assert!(error.contains("service.toml"), "{error}");
    }

    #[test]
    fn a_server_runs_until_it_is_ended() {
        let (mut child, folder) = recorded("ended", |began| began);
        RunningServer::read(&folder).expect("it runs").end().unwrap();
        assert!(RunningServer::read(&folder).is_none());
        child.wait().unwrap();
        assert!(!folder.join("running").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_process_with_the_same_id_is_a_different_server() {
        let (mut child, folder) = recorded("another", |began| format!("{began}0"));
        assert!(RunningServer::read(&folder).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
