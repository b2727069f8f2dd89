//! The shell blocks of the README, the guide and `docs`, run with this binary, each in a network of its own.
//!
//! A block whose lines are all commands of `hapax` is run line by line. A command that serves is asked to stop after a
//! while. Any other block is a script. `<!-- continues -->` above a block appends it to the script before it, and
//! `<!-- not run: REASON -->` leaves a block out.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hapax::stores::{Sqlite, SqliteDeadLetters, SqliteLedger, SqliteOutbox, SqliteQueue};
use hapax_testkit::servers::Trial;
use libtest_mimic::{Completion, Failed};
use rusqlite::Connection;

/// The programs that the documents use beside `hapax`.
const PROGRAMS: [&str; 5] = ["curl", "go", "node", "openssl", "python3"];

/// How long a command that serves runs before it is asked to stop.
const SERVES_FOR: &str = "3";

pub(crate) fn tests() -> Vec<Trial> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md")];
    for folder in ["crates/hapax/src/guide", "docs"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the documents are there");
        documents.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| is_document(path)));
    }
    documents.iter().flat_map(|path| blocks(path)).map(trial).collect()
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// A block, or several that continue each other.
struct ShellBlock {
    /// `README.md:68`.
    place: String,
    text: String,
    /// Why it is not run.
    reason: Option<String>,
}

fn blocks(path: &Path) -> Vec<ShellBlock> {
    let text = std::fs::read_to_string(path).expect("the document is text");
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found: Vec<ShellBlock> = Vec::new();
    let (mut above, mut is_inside) = (String::new(), false);
    for (number, line) in text.lines().enumerate() {
        match (line, is_inside) {
            ("```sh", false) => {
                is_inside = true;
                if above != "<!-- continues -->" {
                    let reason = above.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                    let (place, reason) = (format!("{file}:{}", number + 1), reason.map(str::to_owned));
                    found.push(ShellBlock { place, text: String::new(), reason });
                }
            }
            ("```", true) => is_inside = false,
            (line, true) => found.last_mut().expect("a block has begun").text += &format!("{line}\n"),
            (line, false) => assert!(!["```bash", "```shell", "```console"].contains(&line), "{file}: write ```sh"),
        }
        if !line.is_empty() {
            line.clone_into(&mut above);
        }
    }
    found
}

fn trial(block: ShellBlock) -> Trial {
    Trial::ignorable_test(format!("shell::{}", block.place), move || {
        if let Some(reason) = block.reason {
            return Ok(Completion::ignored_with(reason));
        }
        let used = PROGRAMS.into_iter().filter(|name| block.text.contains(&format!("{name} ")));
        let mut needed = ["unshare", "ip", "timeout"].into_iter().chain(used);
        if let Some(missing) = needed.find(|name| !is_here(name)) {
            return Ok(Completion::ignored_with(format!("{missing} is not on PATH, or may not be used")));
        }
        let directory = directory_of_a_shop();
        let commands = block.text.replace("\\\n", " ");
        if commands.lines().all(|line| line.starts_with("hapax ")) {
            commands.lines().try_for_each(|line| run_command(line, directory.path()))?;
        } else {
            run_script(&block.text, directory.path())?;
        }
        Ok(Completion::Completed)
    })
}

fn is_here(program: &str) -> bool {
    // A namespace may be forbidden although the program is there.
    let mut probe = Command::new(program);
    match program {
        "unshare" => probe.args(["--map-root-user", "--net", "--pid", "--fork", "true"]),
        "ip" => probe.arg("-V"),
        "openssl" | "go" => probe.arg("version"),
        _ => probe.arg("--version"),
    };
    probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The files that the documents speak of, with their tables.
fn directory_of_a_shop() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["shop.db", "orders.db", "post.db", "bank.db"] {
        let mut file = Connection::open(directory.path().join(name)).unwrap();
        SqliteLedger::migrate(&mut file).unwrap();
        SqliteOutbox::migrate(&mut file).unwrap();
        SqliteQueue::migrate(&mut file).unwrap();
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::os::unix::fs::symlink(examples, directory.path().join("examples")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    for name in ["hapax.db", "requests.db"] {
        drop(Sqlite::open(directory.path().join(name)).unwrap());
    }
    for name in ["shop.db", "hapax.db"] {
        SqliteDeadLetters::migrate(&mut Connection::open(directory.path().join(name)).unwrap()).unwrap();
    }
    for name in ["secret", "webhook.secret"] {
        let path = directory.path().join(name);
        std::fs::write(&path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G\n").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }
    directory
}

/// Runs bash in a network and a process tree of its own: whatever it leaves running ends with it.
fn bash(script: &str, directory: &Path) -> Result<Output, Failed> {
    let folder = PathBuf::from(env!("CARGO_BIN_EXE_hapax")).parent().unwrap_or(Path::new("/")).display().to_string();
    let home = directory.display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--net", "--pid", "--fork", "--kill-child", "timeout", "120", "bash", "-c"]);
    shell.arg(format!("ip link set lo up\n{script}")).current_dir(directory);
    // Kept for the next run: the compiler of Go first compiles its library.
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| "/var/tmp".into());
    let cache = format!("{cache}/hapax-services/go");
    let variables: BTreeMap<String, String> =
        [("PATH", path), ("HOME", home), ("GOCACHE", cache)].map(|(name, value)| (name.to_owned(), value)).into();
    Ok(shell.env_clear().envs(variables).stdin(Stdio::null()).output()?)
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A command must be accepted. It may fail at servers that are not here, but only then.
fn run_command(line: &str, directory: &Path) -> Result<(), Failed> {
    if (line.contains("kafka://") && !cfg!(feature = "kafka"))
        || (line.contains("amqp://") && !cfg!(feature = "rabbitmq"))
    {
        return Ok(());
    }
    let output = bash(&format!("exec timeout --preserve-status -s TERM -k 30 {SERVES_FOR} {line}"), directory)?;
    let names_a_server = [".example", "HOST", "nats://", "redis://", "kafka://"].iter().any(|part| line.contains(part));
    let is_accepted = match output.status.code() {
        // A list may find nothing, and a check something.
        Some(0 | 1) => true,
        Some(3) => names_a_server,
        _ => false,
    };
    assert!(is_accepted, "{line}: {}\n{}", output.status, said(&output));
    Ok(())
}

/// The statuses that the comments of a script promise must come in this order.
fn run_script(script: &str, directory: &Path) -> Result<(), Failed> {
    let output = bash(script, directory)?;
    let said = said(&output);
    // A body without a newline at its end is followed by the next answer.
    let mut answered: Vec<&str> = said.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    for status in script.lines().filter_map(promised_status) {
        let at = answered.iter().position(|answer| *answer == status);
        let Some(at) = at else { panic!("no answer {status}, or too early:\n{said}") };
        answered.drain(..=at);
    }
    assert!(output.status.success(), "{}\n{said}", output.status);
    Ok(())
}

/// The status in the comment of a line: 409 in `pay order-1   # ... 409 in-progress`.
fn promised_status(line: &str) -> Option<&str> {
    let (_, comment) = line.split_once(" # ")?;
    let words = comment.split([' ', ',', ':']);
    words.into_iter().find(|word| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()))
}
