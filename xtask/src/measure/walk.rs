//! Follows one POST through the gateway: which files it enters, and how often its body is wrapped.
//!
//! The gateway runs under callgrind on SQLite, in a development build, so that a function keeps its file. A first POST
//! warms it up. Then callgrind counts while the gateway is idle, and after that while a second POST, with a key and a
//! connection of its own, is under way. Files that the idle gateway enters too belong to its background loops. The API
//! holds its response until callgrind has written what it counted, so that the two directions are known apart.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::callgrind::CallgrindProfile;
use super::upstream::HeldUpstream;
use crate::cargo;

/// The longest time that a step under callgrind may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The shortest time for which the idle gateway is observed. Loops that run every few seconds run at least once.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which nothing of a finished step still runs.
const QUIET: Duration = Duration::from_millis(500);

/// The profiles of an idle gateway and of the two directions of a POST.
struct WalkProfiles {
    idle: CallgrindProfile,
    /// Until the API has the whole request.
    request: CallgrindProfile,
    /// From there until the client has the whole response.
    response: CallgrindProfile,
}

/// Prints the two figures; without valgrind it prints that they were not measured.
pub(super) fn report(checkout: &Path) -> bool {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("files entered by one POST, wrappings of its body: not measured, valgrind is not on PATH");
        return true;
    }
    match profile_of_a_post(checkout) {
        Ok(profiles) => {
            print_files(checkout, &profiles);
            print_wrappings("request body", &profiles.request);
            print_wrappings("response body", &profiles.response);
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
fn print_files(checkout: &Path, WalkProfiles { idle, request, response }: &WalkProfiles) {
    let file = |path: &str| workspace_file(checkout, path);
    let entered = |profile: &CallgrindProfile| -> BTreeSet<String> {
        profile.files.iter().filter_map(|path| file(path)).collect()
    };
    let calls = request.calls.iter().chain(&response.calls);
    let callers: BTreeSet<String> = calls.filter_map(|(from, to)| file(to).and(file(from))).collect();
    let idle = entered(idle);
    let (left_out, files): (Vec<String>, Vec<String>) =
        (&entered(request) | &entered(response)).into_iter().partition(|file| idle.contains(file));
    let calling = files.iter().filter(|file| callers.contains(*file)).count();
    print!("files entered by one POST: {} (of these, {calling} call into another one, *)", files.len());
    println!("; entered by an idle gateway as well and left out: {}", left_out.len());
    for file in &files {
        println!("  {}{file}", if callers.contains(file) { "* " } else { "  " });
    }
    left_out.iter().for_each(|file| println!("  left out: {file}"));
}

/// Prints the body types through which a body passes. `Incoming`, hyper's own type, is in both directions.
fn print_wrappings(name: &str, profile: &CallgrindProfile) {
    let bodies: Vec<_> = profile.functions.iter().filter_map(|function| body_type(function)).collect();
    println!("wrappings of its {name}: {}", bodies.len());
    bodies.iter().for_each(|body| println!("  {body}"));
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

fn profile_of_a_post(checkout: &Path) -> io::Result<WalkProfiles> {
    let binary = build(checkout)?;
    let folder = env::temp_dir().join(format!("hapax-measure-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let upstream = HeldUpstream::start()?;
    let listen = free_address()?;
    let mut gateway = start(&binary, &folder, upstream.address, listen)?;
    let measured = measure(&mut gateway, &upstream, listen);
    if measured.is_err() {
        let _ = gateway.kill();
    }
    let _ = gateway.wait();
    let profiles = measured.and_then(|()| read_profiles(&folder));
    fs::remove_dir_all(&folder)?;
    profiles
}

/// Callgrind numbers what it writes on demand. The first file is the warm-up; the last one, written when the process
/// ends, has no number.
fn read_profiles(folder: &Path) -> io::Result<WalkProfiles> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).map(|output| CallgrindProfile::read(&output));
    Ok(WalkProfiles {
        idle: read("callgrind.out.2")?,
        request: read("callgrind.out.3")?,
        response: read("callgrind.out")?,
    })
}

fn build(checkout: &Path) -> io::Result<PathBuf> {
    let mut command = cargo();
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

fn measure(gateway: &mut Child, upstream: &HeldUpstream, listen: SocketAddr) -> io::Result<()> {
    wait_until_it_listens(gateway, listen)?;
    // The warm-up is instrumented too, so that it takes longer than the POST after it.
    control(gateway, &["-i", "on"])?;
    let begun = Instant::now();
    let warm_up = thread::spawn(move || post(listen, "warm-up"));
    upstream.wait_for_request(LIMIT)?;
    upstream.release_response()?;
    join(warm_up)?;
    let idle = IDLE.max(2 * begun.elapsed());
    thread::sleep(QUIET);
    control(gateway, &["--dump"])?;
    thread::sleep(idle);
    control(gateway, &["--dump"])?;
    let begun = Instant::now();
    let measured = thread::spawn(move || post(listen, "measured"));
    upstream.wait_for_request(LIMIT)?;
    thread::sleep(QUIET);
    control(gateway, &["--dump"])?;
    upstream.release_response()?;
    join(measured)?;
    control(gateway, &["-i", "off"])?;
    if begun.elapsed() > idle {
        return Err(io::Error::other("the POST took longer than the idle time before it"));
    }
    end(gateway)
}

fn join(post: thread::JoinHandle<io::Result<()>>) -> io::Result<()> {
    post.join().unwrap_or_else(|_| Err(io::Error::other("the client panicked")))
}

/// Ends the gateway. Callgrind writes its last output then.
fn end(gateway: &mut Child) -> io::Result<()> {
    let ended = Command::new("kill").arg(gateway.id().to_string()).status()?;
    if ended.success() { gateway.wait().map(drop) } else { Err(io::Error::other("cannot end the gateway")) }
}

/// Switches the counting on or off, or writes what was counted and starts at zero.
fn control(gateway: &Child, arguments: &[&str]) -> io::Result<()> {
    let done = Command::new("callgrind_control").args(arguments).arg(gateway.id().to_string()).output()?;
    if done.status.success() { Ok(()) } else { Err(io::Error::other("callgrind_control failed")) }
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
