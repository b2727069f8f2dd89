//! Follows one POST through the gateway: which files it enters, and how often its body is wrapped.
//!
//! The gateway runs under callgrind on SQLite, in a development build, so that a function keeps its file. A first POST
//! warms it up. Callgrind counts only while the second POST, with a key and a connection of its own, is under way.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::callgrind::CallgrindProfile;

/// The longest time that a step under callgrind may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Prints the two figures; without valgrind it prints that they were not measured.
pub(super) fn report(checkout: &Path) -> bool {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("files entered by one POST, wrappings of its body: not measured, valgrind is not on PATH");
        return true;
    }
    match profile_of_a_post(checkout) {
        Ok(profile) => {
            print_files(checkout, &profile);
            let bodies: Vec<_> = profile.functions.iter().filter_map(|function| body_type(function)).collect();
            println!("wrappings of its request body and response body: {}", bodies.len());
            bodies.iter().for_each(|body| println!("  {body}"));
            true
        }
        Err(error) => {
            println!("cannot follow a POST: {error}");
            false
        }
    }
}

/// Prints the files of the workspace's crates. A file with an asterisk calls a function of another one; the others are
/// leaves.
fn print_files(checkout: &Path, profile: &CallgrindProfile) {
    let file = |path: &str| workspace_file(checkout, path);
    let calls = profile.calls.iter().filter_map(|(from, to)| Some((file(from)?, file(to)?)));
    let callers: BTreeSet<String> = calls.map(|(from, _)| from).collect();
    let files: BTreeSet<String> = profile.files.iter().filter_map(|path| file(path)).collect();
    println!("files entered by one POST: {}; of these, {} call into another one (*)", files.len(), callers.len());
    for file in &files {
        println!("  {}{file}", if callers.contains(file) { "* " } else { "  " });
    }
}

/// The path from the root of the checkout, for a file of its crates.
fn workspace_file(checkout: &Path, path: &str) -> Option<String> {
    let file = &path[path.rfind("crates/")?..];
    (file.contains("/src/") && checkout.join(file).exists()).then(|| file.to_owned())
}

/// `A<B>` in `<A<B> as http_body::Body>::poll_frame`. Each instance of a generic body counts: it is a wrapping of its
/// own. References and boxes only forward the call and do not count.
fn body_type(function: &str) -> Option<&str> {
    let (body, method) = function.split_once(" as http_body::Body>::poll_frame")?;
    let is_pointer =
        ["<&mut ", "<core::pin::Pin<", "<alloc::boxed::Box<"].iter().any(|pointer| body.starts_with(pointer));
    (!method.contains("{{closure}}") && !is_pointer).then(|| body.trim_start_matches('<'))
}

fn profile_of_a_post(checkout: &Path) -> io::Result<CallgrindProfile> {
    let binary = build(checkout)?;
    let folder = env::temp_dir().join(format!("hapax-measure-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let upstream = serve_upstream()?;
    let listen = free_address()?;
    let mut gateway = start(&binary, &folder, upstream, listen)?;
    let measured = measure(&mut gateway, listen);
    if measured.is_err() {
        let _ = gateway.kill();
    }
    let _ = gateway.wait();
    let output = measured.and_then(|()| fs::read_to_string(folder.join("callgrind.out")));
    fs::remove_dir_all(&folder)?;
    Ok(CallgrindProfile::read(&output?))
}

fn build(checkout: &Path) -> io::Result<PathBuf> {
    let mut command = Command::new("cargo");
    // rustix asks the kernel where the vDSO lies. Valgrind hides it, so that rustix must ask the C library instead.
    command.args(["build", "--quiet", "--package", "hapax-cli", "--features", "rustix/use-libc-auxv"]);
    let built = command.current_dir(checkout).status()?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout.join("target"), PathBuf::from);
    if built.success() { Ok(target.join("debug/hapax")) } else { Err(io::Error::other("cargo build failed")) }
}

fn start(binary: &Path, folder: &Path, upstream: SocketAddr, listen: SocketAddr) -> io::Result<Child> {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--instr-atstart=no"]);
    command.arg(format!("--callgrind-out-file={}", folder.join("callgrind.out").display()));
    command.arg(binary).args(["gateway", "--upstream", &format!("http://{upstream}"), "--listen", &listen.to_string()]);
    command.args(["--admin", &free_address()?.to_string()]);
    command.args(["--store", &format!("sqlite://{}", folder.join("hapax.db").display())]);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn measure(gateway: &mut Child, listen: SocketAddr) -> io::Result<()> {
    wait_until_it_listens(gateway, listen)?;
    post(listen, "warm-up")?;
    instrument(gateway, "on")?;
    post(listen, "measured")?;
    instrument(gateway, "off")?;
    // Callgrind writes its output when the process ends.
    let ended = Command::new("kill").arg(gateway.id().to_string()).status()?;
    if ended.success() { gateway.wait().map(drop) } else { Err(io::Error::other("cannot end the gateway")) }
}

fn instrument(gateway: &Child, state: &str) -> io::Result<()> {
    let pid = gateway.id().to_string();
    let switched = Command::new("callgrind_control").args(["-i", state, &pid]).output()?;
    if switched.status.success() { Ok(()) } else { Err(io::Error::other("callgrind_control failed")) }
}

fn wait_until_it_listens(gateway: &mut Child, listen: SocketAddr) -> io::Result<()> {
    let begun = Instant::now();
    while TcpStream::connect(listen).is_err() {
        if gateway.try_wait()?.is_some() || begun.elapsed() > LIMIT {
            return Err(io::Error::other("the gateway does not listen"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Sends a POST with this key on a new connection and reads the response to its end.
fn post(listen: SocketAddr, key: &str) -> io::Result<()> {
    let mut connection = TcpStream::connect(listen)?;
    connection.set_read_timeout(Some(LIMIT))?;
    let fields = format!("Host: {listen}\r\nAuthorization: Bearer me\r\nIdempotency-Key: {key}\r\nConnection: close");
    write!(connection, "POST /pay HTTP/1.1\r\n{fields}\r\nContent-Length: 8\r\n\r\namount=5")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    let is_created = response.starts_with("HTTP/1.1 201");
    if is_created { Ok(()) } else { Err(io::Error::other(format!("the gateway returned: {response}"))) }
}

/// An API that answers each request with 201 and a short body, until this process ends.
fn serve_upstream() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || answer_requests(&connection));
        }
    });
    Ok(address)
}

fn answer_requests(mut connection: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    loop {
        let mut length = 0;
        let mut line = String::new();
        while line.trim_end() != "" || line.is_empty() {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        connection.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\ncharge 1")?;
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_named_by_its_type() {
        assert_eq!(body_type("<a::B<c::D> as http_body::Body>::poll_frame"), Some("a::B<c::D>"));
        assert_eq!(body_type("<a::B as http_body::Body>::size_hint"), None);
        assert_eq!(body_type("<a::B as http_body::Body>::poll_frame::{{closure}}"), None);
    }

    #[test]
    fn pointers_to_bodies_are_no_wrappings() {
        assert_eq!(body_type("<core::pin::Pin<P> as http_body::Body>::poll_frame"), None);
        assert_eq!(body_type("<&mut T as http_body::Body>::poll_frame"), None);
    }

    #[test]
    fn only_files_of_the_workspace_count() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let file = |path| workspace_file(&root, path);
        assert_eq!(file("/x/crates/core/src/gate.rs").as_deref(), Some("crates/core/src/gate.rs"));
        assert_eq!(file("crates/core/src/gone.rs"), None);
        assert_eq!(file("/registry/src/hyper/src/lib.rs"), None);
    }
}
