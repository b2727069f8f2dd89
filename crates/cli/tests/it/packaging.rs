//! What packages take from the binary and from `assets`: version, manual, completions, configuration, alerts, units.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use hapax::ledger::Event;
use hapax::stores::{SqliteLedger, SqliteOutbox, SqliteQueue};
use rusqlite::Connection;
use serde_json::Value;

use crate::harness::{Api, DEADLINE, Gateway, free_address, hapax};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn asset(name: &str) -> String {
    std::fs::read_to_string(root().join("assets").join(name)).unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = hapax().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_long_version_has_features_and_commit() {
    let long = printed(&["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], printed(&["-V"]).trim());
    assert!(lines[0].starts_with(&format!("hapax {}", env!("CARGO_PKG_VERSION"))), "{long}");
    assert!(lines[1].starts_with("features: ") && lines[1].contains("sqlite"), "{long}");
    assert!(lines[2].starts_with("commit: "), "{long}");
}

/// The commands in a help text.
fn commands(help: &str) -> Vec<&str> {
    let before_options = help.lines().take_while(|line| *line != "Options:");
    let listed = before_options.skip_while(|line| !line.starts_with("Usage:"));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase()) && *name != "help").collect()
}

fn is_of_flag(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '-'
}

/// The long flags in a help text, at the beginning of a line.
fn flags(help: &str) -> BTreeSet<&str> {
    let words = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("-h, ").or_else(|| line.strip_prefix("-V, ")).unwrap_or(line);
        line.starts_with("--").then(|| line.split(|char| !is_of_flag(char)).next()).flatten()
    });
    words.filter(|flag| !["--help", "--version"].contains(flag)).collect()
}

/// Panics if the page of a command lacks a flag of its help, or if a command below it has no such page.
fn assert_page_is_complete(directory: &Path, command: &[&str]) {
    let name = format!("hapax-{}", command.join("-"));
    let page = std::fs::read_to_string(directory.join(format!("{name}.1"))).expect(&name);
    let page = page.replace("\\-", "-").replace("\\fB", " ").replace("\\fI", " ");
    let help = printed(&[command, &["--help"]].concat());
    let words: BTreeSet<&str> = page.split(|char| !is_of_flag(char)).collect();
    for flag in flags(&help) {
        assert!(words.contains(flag), "{name}.1 has no {flag}");
    }
    for inner in commands(&help) {
        assert!(words.contains(&*format!("{name}-{inner}")), "{name}.1 does not name {inner}");
        assert_page_is_complete(directory, &[command, &[inner]].concat());
    }
}

#[test]
fn each_command_has_a_page_with_all_its_flags() {
    let directory = tempfile::tempdir().unwrap();
    printed(&["man", "--to", directory.path().to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
    let help = printed(&["--help"]);
    let all = commands(&help);
    assert!(
        ["gateway", "worker", "relay", "reconcile", "plan", "man"].iter().all(|name| all.contains(name)),
        "{all:?}"
    );
    assert!(page("hapax").contains("hapax\\-gateway(1)"), "the first page names the others");
    for command in all {
        assert_page_is_complete(directory.path(), &[command]);
    }
    let pages = std::fs::read_dir(directory.path()).unwrap().count();
    assert!(page("hapax-dead-list").contains(".TH hapax-dead-list 1") && pages > 12, "{pages} pages");
    let hidden = directory.path().join("hapax-demo-service.1");
    assert!(!hidden.exists(), "a hidden command has a page");
}

#[test]
fn the_completions_are_scripts_that_know_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("reconcile") && script.contains("dead-letter"), "{shell}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.bash");
    std::fs::write(&path, printed(&["completions", "bash"])).unwrap();
    let ask = "source \"$1\"; COMP_WORDS=(hapax worker --dead-l); COMP_CWORD=2; _hapax hapax --dead-l worker; \
               printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", ask, "bash"]).arg(&path).output().expect("bash");
    let offered = String::from_utf8(output.stdout).unwrap();
    assert!(offered.lines().any(|word| word == "--dead-letter"), "{offered:?} {:?}", output.stderr);
}

/// The file with each default turned on. Placeholders are in capitals, and stay off.
fn with_defaults(annotated: &str) -> String {
    let turn_on = |line: &str| {
        let Some((key, value)) = line.strip_prefix('#').and_then(|setting| setting.split_once(" = ")) else {
            return line.to_owned();
        };
        let is_setting = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let is_placeholder = value.trim_matches(['[', ']', '"']).bytes().all(|byte| !byte.is_ascii_lowercase())
            && value.contains('"')
            && !value.bytes().any(|byte| byte.is_ascii_digit());
        if is_setting && !is_placeholder { line[1..].to_owned() } else { line.to_owned() }
    };
    annotated.lines().map(|line| turn_on(line) + "\n").collect()
}

#[test]
fn the_annotated_configuration_is_accepted_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.toml");
    let text = with_defaults(&asset("hapax.toml"));
    assert!(text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count() > 40, "{text}");
    std::fs::write(&path, text).unwrap();
    let config = path.to_str().unwrap();
    let required: [(&str, &[&str]); 3] = [
        ("gateway", &["--upstream", "http://127.0.0.1:9"]),
        ("worker", &["--source", "sqlite://shop.db?queue=q", "--target", "http://127.0.0.1:9"]),
        ("relay", &["--database", "sqlite://shop.db", "--sink", "sqlite://other.db?queue=q"]),
    ];
    for (command, flags) in required {
        // The check of a relay opens its database; its values are read before.
        let check = |more: &[&str]| {
            let mut all = hapax();
            all.current_dir(directory.path()).args([command, "--check"]).args(flags).args(more);
            let output = all.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_ne!(output.status.code(), Some(2), "{command}: {said}");
            let shown = String::from_utf8(output.stdout).unwrap();
            let values = shown.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
            values.collect::<Vec<_>>()
        };
        let (with_file, without) = (check(&["--config", config]), check(&[]));
        assert_eq!(with_file, without, "{command}");
        assert!(without.len() > 5, "{command} shows its settings: {without:?}");
    }
}

#[test]
fn each_unit_keeps_its_audit_file_in_a_directory_of_its_own() {
    let state = tempfile::tempdir().unwrap();
    // A user without a home, and a database on another host: there is no other place for the file.
    let database = "postgres://127.0.0.1:9/shop";
    let commands: [(&str, &[&str]); 3] = [
        ("gateway", &["--upstream", "http://127.0.0.1:9", "--store", database]),
        ("worker", &["--source", "sqlite://shop.db?queue=q", "--target", "http://127.0.0.1:9", "--store", database]),
        ("relay", &["--database", database, "--sink", "sqlite://other.db?queue=q"]),
    ];
    for (name, flags) in commands {
        let unit = asset(&format!("systemd/hapax-{name}.service"));
        let values = |key: &'static str| unit.lines().filter_map(move |line| line.strip_prefix(key));
        let directories: Vec<&str> = values("StateDirectory=").flat_map(str::split_whitespace).collect();
        let mut process = hapax();
        process.current_dir(state.path()).args([name, "--check"]).args(flags);
        for (variable, value) in values("Environment=").filter_map(|line| line.split_once('=')) {
            process.env(variable, value.replace("%S", state.path().to_str().unwrap()));
        }
        let shown = String::from_utf8(process.output().unwrap().stdout).unwrap();
        let audit = shown.lines().find_map(|line| line.trim().strip_prefix("audit-file")).unwrap_or_default();
        let path = Path::new(audit.split_whitespace().next().unwrap_or_default());
        let directory = path.parent().and_then(|directory| directory.strip_prefix(state.path()).ok());
        let is_owned = directory.is_some_and(|own| directories.iter().any(|listed| Path::new(listed) == own));
        assert!(is_owned, "{name}: {audit:?} is not in {directories:?}\n{shown}");
    }
}

/// The metrics of admin pages: of each name its labels, and of each label its values.
type Exposed = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn add_exposed(all: &mut Exposed, page: &str) {
    for sample in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, rest) = sample.split_once(['{', ' ']).unwrap();
        let known = all.entry(name.to_owned()).or_default();
        let written = if sample.contains('{') { rest.rsplit_once('}').unwrap().0 } else { "" };
        for (label, value) in labels(written) {
            known.entry(label.to_owned()).or_default().insert(value.to_owned());
        }
    }
}

/// The labels of a sample with their values, or the matchers of a query.
fn labels(written: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts: Vec<&str> = written.split('"').collect();
    let name = |text: &str| text.find(|char: char| char.is_ascii_alphabetic()).unwrap_or_default();
    let pairs: Vec<_> = parts.chunks_exact(2).map(|pair| (&pair[0][name(pair[0])..], pair[1])).collect();
    pairs.into_iter().map(|(label, value)| (label.trim_end_matches(['=', '~', '!']), value))
}

/// The labels that Prometheus adds.
const OF_TARGETS: [&str; 2] = ["job", "instance"];

/// Fails if a query has a metric, a label or the value of a label that no process exposes.
fn check_exposed(query: &str, all: &Exposed) -> Result<(), String> {
    let check = |holds: bool, what: String| if holds { Ok(()) } else { Err(format!("{query}: {what}")) };
    let asked = queried(query);
    assert!(!asked.is_empty(), "{query} asks for nothing");
    for name in &asked {
        check(all.contains_key(name), format!("nothing exposes {name}"))?;
    }
    let pieces: Vec<&str> = query.split('{').collect();
    for (before, after) in pieces.iter().zip(pieces.iter().skip(1)) {
        let name = before.rsplit(|char: char| !char.is_ascii_alphanumeric() && char != '_').next().unwrap();
        for (label, value) in labels(after.split('}').next().unwrap()) {
            let values = all[name].get(label);
            check(OF_TARGETS.contains(&label) || values.is_some(), format!("{name} has no label {label}"))?;
            let is_known = value.starts_with('$') || values.is_some_and(|values| values.contains(value));
            check(is_known, format!("{name} has no {label} {value:?}"))?;
        }
    }
    for list in query.split(" by (").skip(1) {
        for label in list.split(')').next().unwrap().split(", ") {
            let is_known = asked.iter().any(|name| all[name].contains_key(label));
            check(OF_TARGETS.contains(&label) || is_known, format!("no metric has the label {label}"))?;
        }
    }
    Ok(())
}

/// The words of a query that are names of metrics.
fn queried(query: &str) -> BTreeSet<String> {
    let words = query.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("hapax_") || word.starts_with("process_")).map(str::to_owned).collect()
}

fn queries_of_board(board: &Value) -> Vec<String> {
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let variables = board["templating"]["list"].as_array().unwrap();
    let definitions = variables.iter().filter_map(|variable| variable["definition"].as_str()).map(str::to_owned);
    queries.chain(definitions).collect()
}

/// The queries of alerts. One that is longer than a line is indented below its `expr: >-`.
fn queries_of_alerts(alerts: &str) -> Vec<String> {
    let mut lines = alerts.lines().peekable();
    let mut queries = Vec::new();
    while let Some(line) = lines.next() {
        let Some(first) = line.trim_start().strip_prefix("expr: ") else { continue };
        let mut query = first.replace(">-", "");
        let indent = format!("{}  ", &line[..line.len() - line.trim_start().len()]);
        while let Some(more) = lines.next_if(|line| line.starts_with(&indent)) {
            query = format!("{query} {}", more.trim());
        }
        queries.push(query);
    }
    queries
}

/// A gateway, a worker and a relay, none of which has done anything yet.
struct AllProcesses {
    directory: tempfile::TempDir,
    gateway: Gateway,
    worker: SocketAddr,
    relay: SocketAddr,
    _others: [KilledAtEnd; 2],
}

impl AllProcesses {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let api = Api::start().await;
        let gateway = Gateway::start(api.address, "memory:", &[]).await;
        let shop = path("shop.db");
        let mut connection = Connection::open(&shop).unwrap();
        SqliteLedger::migrate(&mut connection).unwrap();
        SqliteOutbox::migrate(&mut connection).unwrap();
        SqliteQueue::migrate(&mut connection).unwrap();
        let (worker, relay) = (free_address(), free_address());
        let target = format!("http://{}/transfers", api.address);
        let _others = [
            hapax()
                .args(["worker", "--source", &format!("sqlite://{shop}?queue=orders"), "--target", &target])
                .args(["--store", &format!("sqlite://{}", path("records.db")), "--admin", &worker.to_string()])
                .spawn()
                .unwrap(),
            hapax()
                .args(["relay", "--database", &format!("sqlite://{shop}")])
                .args(["--sink", &format!("sqlite://{shop}?queue=orders"), "--admin", &relay.to_string()])
                .spawn()
                .unwrap(),
        ]
        .map(KilledAtEnd);
        Self { directory, gateway, worker, relay, _others }
    }

    /// Lets the gateway, the relay and the worker do something.
    async fn use_each(&self) {
        self.gateway.post("/charges", "key-1", "{}").await.unwrap();
        let mut shop = Connection::open(self.directory.path().join("shop.db")).unwrap();
        let transaction = shop.transaction().unwrap();
        SqliteOutbox::emit(&transaction, "accounts", None, Event::new("orders", "{}")).unwrap();
        transaction.commit().unwrap();
    }

    /// The pages of all, which a process that has just started may not serve yet.
    async fn pages(&self) -> Vec<String> {
        let mut pages = Vec::new();
        for address in [self.gateway.admin, self.worker, self.relay] {
            pages.extend(self.gateway.get(address, "/metrics").await.map(|page| page.body));
        }
        pages
    }
}

struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `check` finds nothing on the pages. A process registers its metrics one after the other, and a page that
/// it serves meanwhile has some of them.
async fn until_complete(processes: &AllProcesses, mut check: impl FnMut(&[String]) -> Result<(), String>) {
    let mut found = Ok(());
    let started = Instant::now();
    while started.elapsed() < DEADLINE {
        found = check(&processes.pages().await);
        if found.is_ok() {
            return;
        }
        hapax_testkit::pause().await;
    }
    panic!("{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_board_ask_for_metrics_that_exist() {
    let alerts = asset("alerts.yml");
    let board: Value = serde_json::from_str(&asset("board.json")).unwrap();
    let (of_alerts, of_board) = (queries_of_alerts(&alerts), queries_of_board(&board));
    let alert_count = alerts.matches("- alert: ").count();
    assert!(of_alerts.len() == alert_count && of_board.len() > 20, "{} {}", of_alerts.len(), of_board.len());
    assert_eq!(alerts.matches("runbook: ").count(), alert_count, "an alert has no runbook");
    assert_eq!(alerts.matches("severity: ").count(), alert_count, "an alert has no severity");
    let processes = AllProcesses::start().await;
    processes.use_each().await;
    until_complete(&processes, |pages| {
        let mut all = Exposed::new();
        pages.iter().for_each(|page| add_exposed(&mut all, page));
        // Only a Rust service has a ledger.
        all.entry(hapax::telemetry::names::UNFINISHED.into()).or_default();
        of_alerts.iter().chain(&of_board).try_for_each(|query| check_exposed(query, &all))
    })
    .await;
}

/// The counters whose increase a query asks for, with the labels that it names.
fn counters(query: &str) -> impl Iterator<Item = &str> {
    let asked = ["increase(", "rate("].into_iter().flat_map(move |function| query.split(function).skip(1));
    let names = asked.map(|rest| rest.split(['[', ')']).next().unwrap());
    names.filter(|name| !name.ends_with("_bucket") && *name != hapax::telemetry::names::UNFINISHED)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_counter_of_an_alert_is_exposed_with_0_before_its_first_event() {
    let queries = queries_of_alerts(&asset("alerts.yml"));
    let asked: BTreeSet<&str> = queries.iter().flat_map(|query| counters(query)).collect();
    assert!(asked.len() > 10, "{asked:?}");
    let processes = AllProcesses::start().await;
    until_complete(&processes, |pages| {
        let samples = |name: &str| -> Vec<&str> {
            let lines = pages.iter().flat_map(|page| page.lines());
            lines.filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))).collect()
        };
        asked.iter().try_for_each(|name| match &samples(name)[..] {
            [] => Err(format!("nothing exposes {name}")),
            samples => samples.iter().try_for_each(|sample| match sample.ends_with(" 0") {
                true => Ok(()),
                false => Err(format!("an event was counted: {sample}")),
            }),
        })
    })
    .await;
}

/// The values of an annotation that each alert has, on a line of its own.
fn annotations(alerts: &str, name: &str) -> Vec<String> {
    let begin = format!("          {name}: '");
    let values = alerts.lines().filter_map(|line| line.strip_prefix(&*begin)?.strip_suffix('\''));
    values.map(|value| value.replace("{{ $labels.instance }}", "127.0.0.1:1")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_alert_has_a_command_and_a_page_that_exist() {
    let (alerts, api) = (asset("alerts.yml"), Api::start().await);
    let (commands, pages) = (annotations(&alerts, "command"), annotations(&alerts, "runbook_url"));
    let alert_count = alerts.matches("- alert: ").count();
    assert_eq!((commands.len(), pages.len()), (alert_count, alert_count));
    for command in commands.iter().map(|command| command.replace("OPERATION", "00000000-0000-8000-8000-000000000000")) {
        let mut words = command.split(' ');
        match words.next().unwrap() {
            "hapax" => drop(printed(&words.chain(["--help"]).collect::<Vec<_>>())),
            program => assert!(["curl", "journalctl", "systemctl"].contains(&program), "{command}"),
        }
    }
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for chapter in pages.iter().map(|page| &page[page.find("/guide/").unwrap()..]).collect::<BTreeSet<_>>() {
        let page = gateway.get(gateway.admin, chapter).await.unwrap();
        assert!(page.status == 200 && page.body.len() > 500, "{chapter}: {} {}", page.status, page.body);
    }
    assert_eq!(gateway.get(gateway.admin, "/guide/nothing").await.unwrap().status, 404);
}

#[test]
fn the_guide_is_printed_chapter_by_chapter() {
    let listed = printed(&["guide"]);
    let names: BTreeSet<_> = listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let files = std::fs::read_dir(root().join("crates/hapax/src/guide")).unwrap().map(|file| file.unwrap().path());
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let files: BTreeSet<_> = files.filter(|path| path.extension().is_some_and(|it| it == "md")).map(stem).collect();
    // Parts of chapters that need another feature.
    let parts = ["consume_a_queue", "consume_a_topic_kafka", "outcomes_over_http", "your_transaction_tests"];
    let missing: Vec<_> = files.difference(&names).collect();
    assert_eq!(missing, parts);
    assert!(printed(&["guide", "security"]).contains("--admin-token-file"));
    assert_eq!(hapax().args(["guide", "nothing"]).output().unwrap().status.code(), Some(2));
}
