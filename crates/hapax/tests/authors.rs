//! The authors of services in Rust: the messages of the compiler, and the versions of crates that show in their code.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The traits that a user can meet, each with a part of the message for a type that lacks it.
fn traits() -> Vec<(&'static str, &'static str)> {
    let mut traits = vec![
        ("gate::Answer", "is no answer that can be stored and replayed"),
        ("runtime::Runtime", "is no runtime"),
        ("journal::Journal", "is no journal"),
        ("Store", "is no store of records"),
        ("Inspect", "does not list its records"),
        ("Probe", "is no probe"),
        ("outbox::Outbox", "is no outbox"),
        ("outbox::OutboxUpkeep", "is no outbox with upkeep"),
        ("outbox::Sink", "is no sink of events"),
        ("broker::Source", "is no source of messages"),
        ("broker::Settle", "settles no deliveries"),
        ("broker::Process", "does not process messages"),
        ("broker::DeadLetters", "takes no dead letters"),
        ("broker::DeadLetterStore", "keeps no dead letters"),
        ("ledger::Transaction", "is no transaction of a ledger"),
        ("ledger::Handler<String>", "is no handler of ledger entries"),
    ];
    if cfg!(feature = "worker") {
        traits.push(("worker::Reopen", "cannot reopen operations"));
    }
    if cfg!(feature = "http") {
        traits.extend([
            ("http::FindKey", "does not find keys"),
            ("http::MakeScope", "does not find the scope of a caller"),
            ("http::MakeFingerprint", "does not compute fingerprints"),
            ("http::JudgeOutcome", "does not judge outcomes"),
            ("http::ShowProblem", "does not show problems"),
        ]);
    }
    if cfg!(feature = "postgres") {
        traits.push(("stores::HandleJobs<String>", "does not handle the jobs of a worker"));
    }
    traits
}

/// The folder with the libraries that were built for this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    test.parent().expect("a program is in a folder").to_owned()
}

/// The newest library of the facade that was built.
fn facade() -> PathBuf {
    let entries = fs::read_dir(built()).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let is_facade = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libhapax-") && name.ends_with(".rlib")
    };
    let changed = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    paths.filter(is_facade).max_by_key(changed).expect("this test depends on the facade")
}

/// The errors of the compiler for a library that uses the facade.
fn errors_of(source: &str) -> String {
    let directory = tempfile::tempdir().expect("a folder can be made");
    let file = directory.path().join("unmet.rs");
    fs::write(&file, source).expect("a file can be written");
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"]);
    compiler.arg(directory.path()).arg("-L").arg(format!("dependency={}", built().display()));
    let output = compiler.arg("--extern").arg(format!("hapax={}", facade().display())).arg(&file).output();
    let output = output.expect("the compiler that built this test can be run");
    assert!(!output.status.success(), "the library must not compile");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_trait_of_the_facade_names_types_that_have_it() {
    let calls = traits().into_iter().enumerate().map(|(index, (path, _))| {
        format!("fn needs{index}<T: hapax::{path}>() {{}}\nfn lacks{index}() {{ needs{index}::<Mine>() }}\n")
    });
    let errors = errors_of(&format!("#[derive(Debug)]\nstruct Mine;\n{}", calls.collect::<String>()));
    for (path, message) in traits() {
        assert!(errors.contains(&format!("`Mine` {message}\n")), "{path}: {message} is missing in\n{errors}");
        let name = path.rsplit("::").next().and_then(|name| name.split('<').next()).expect("a path has a name");
        assert!(errors.contains(&format!("does not implement `{name}`")), "{path}\n{errors}");
    }
    assert!(errors.contains("hapax::gate::Json<T>` (feature `json`)"), "the feature is named\n{errors}");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the folder is part of the repository");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn each_public_trait_has_a_message_for_types_that_lack_it() {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the packages have a folder");
    let mut found = 0;
    for source in
        ["core", "http", "stores", "brokers"].iter().flat_map(|name| sources(&packages.join(name).join("src")))
    {
        let Ok(text) = fs::read_to_string(&source) else { continue };
        for (before, _) in text.match_indices("\npub trait ").map(|(at, line)| (&text[..at], line)) {
            let above = before.rsplit("\n\n").next().unwrap_or_default();
            assert!(above.contains("on_unimplemented"), "{}: a public trait has no message", source.display());
            found += 1;
        }
    }
    assert!(found >= traits().len(), "only {found} traits were found");
}

/// The crates of the table in `docs/support.md`, each with its version.
fn table() -> Vec<(String, String)> {
    let page = include_str!("../../../docs/support.md");
    let (_, rest) = page.split_once("## Crates that show in your code").expect("the page has the table");
    let rows =
        rest.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).skip(1).collect::<Vec<_>>());
    let version = |text: &str| match text.strip_suffix(" or later") {
        Some(oldest) => format!(">={oldest}"),
        None => text.to_owned(),
    };
    cells.map(|cells| (cells[0].to_owned(), version(cells[1]))).collect()
}

#[test]
fn a_new_project_with_the_crates_of_the_table_has_each_of_them_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let project = tempfile::tempdir().expect("a folder can be made");
    let table = table();
    assert!(table.len() > 5, "{table:?}");
    // Without default features, since those of sqlx name drivers that this workspace never fetches.
    let line = |(name, version): &(String, String)| {
        format!("{name} = {{ version = {version:?}, default-features = false }}\n")
    };
    let lines = table.iter().map(line);
    let manifest = format!(
        "[package]\nname = \"new\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n{}\
         hapax = {{ path = {:?}, features = [\"axum\", \"json\", \"postgres\", \"sqlite\", \"sqlx\"] }}\n",
        lines.collect::<String>(),
        root.join("crates/hapax"),
    );
    fs::create_dir(project.path().join("src")).expect("a folder can be made");
    fs::write(project.path().join("src/lib.rs"), "").expect("a file can be written");
    fs::write(project.path().join("Cargo.toml"), manifest).expect("a file can be written");
    // Versions that were fetched for this workspace: the network is not needed.
    fs::copy(root.join("Cargo.lock"), project.path().join("Cargo.lock")).expect("the workspace is locked");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let output = cargo.args(["tree", "--offline", "--depth", "0"]).current_dir(project.path()).output();
    let output = output.expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lock = fs::read_to_string(project.path().join("Cargo.lock")).expect("the project is locked");
    for (name, _) in table {
        let entries = lock.matches(&format!("\nname = \"{name}\"\n")).count();
        assert_eq!(entries, 1, "types of {name} in the new project must be those of hapax");
    }
}
