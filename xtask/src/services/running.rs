//! A server that stays after the command that started it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// So long a server may take to listen, or to end.
const LIMIT: Duration = Duration::from_secs(30);

/// How each is started: its name, the port it usually has, and the scheme of its URL.
const USUAL: &[(&str, u16, &str)] = &[("redis", 6379, "redis"), ("valkey", 6380, "redis")];

/// A server that runs, as its file says.
#[derive(Debug)]
pub(super) struct Running {
    file: PathBuf,
    pid: String,
    /// When the process began, in the system's own count: another process may have the number by now.
    began: String,
    url: String,
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}, log {})", self.url, self.pid, self.file.with_file_name("log").display())
    }
}

impl Running {
    /// The server of this folder, if it runs.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let file = folder.join("running");
        let text = fs::read_to_string(&file).ok()?;
        let [pid, began, url] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let running = Self { file, pid: pid.to_owned(), began: began.to_owned(), url: url.to_owned() };
        running.is_there().then_some(running)
    }

    /// Ends it, and waits until it has.
    pub(super) fn end(&self) -> Result<(), String> {
        let killed = Command::new("kill").arg(&self.pid).status();
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

/// When a process began, unless it has ended: the 22nd word of its line, counted behind its name, which may have blanks.
fn began(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    (state != "Z" && state != "X").then(|| words.nth(18).map(str::to_owned)).flatten()
}

/// Starts a server that stays, and waits until it listens.
pub(super) fn start(script: &Path, name: &str, folder: &Path) -> Result<Running, String> {
    let usual = USUAL.iter().find(|(service, ..)| *service == name);
    let &(_, port, scheme) = usual.ok_or_else(|| format!("nobody has said how to leave {name} running"))?;
    launch(script, folder, port, scheme).map_err(|error| format!("{name}: {error}"))
}

fn launch(script: &Path, folder: &Path, port: u16, scheme: &str) -> io::Result<Running> {
    let data = folder.join("data");
    fs::create_dir_all(&data)?;
    let address = free(port)?;
    let log = File::create(folder.join("log"))?;
    let mut command = Command::new(script);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"]).arg(&data);
    // A group of its own: what is typed to end this command does not end the server.
    command.process_group(0).env("HAPAX_STAYS", "1").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn()?;
    if let Err(error) = listens(&mut child, address) {
        let _ = (child.kill(), child.wait());
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        return Err(io::Error::other(format!("{error}; its log:\n{log}")));
    }
    let pid = child.id().to_string();
    let began = began(&pid).ok_or_else(|| io::Error::other("it has ended"))?;
    let url = format!("{scheme}://{address}/0");
    let file = folder.join("running");
    fs::write(&file, format!("{pid} {began} {url}\n"))?;
    Ok(Running { file, pid, began, url })
}

/// The usual port, or another if that is taken.
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

    /// A server that does nothing but live, in a folder of its own.
    fn recorded(name: &str, change: impl Fn(String) -> String) -> (Child, PathBuf) {
        let folder = std::env::temp_dir().join(format!("hapax-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().to_string();
        fs::write(folder.join("running"), format!("{pid} {} url\n", change(began(&pid).unwrap()))).unwrap();
        (child, folder)
    }

    #[test]
    fn a_server_runs_until_it_is_ended() {
        let (mut child, folder) = recorded("ended", |began| began);
        Running::read(&folder).expect("it runs").end().unwrap();
        assert!(Running::read(&folder).is_none());
        child.wait().unwrap();
        assert!(!folder.join("running").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn another_process_with_its_number_is_not_taken_for_it() {
        let (mut child, folder) = recorded("another", |began| format!("{began}0"));
        assert!(Running::read(&folder).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
