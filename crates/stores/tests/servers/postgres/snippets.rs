//! The snippets of `docs/ledger.md`, each with its language and its driver, on a real server.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hapax_core::gate::Provenance;
use hapax_core::ledger::{Call, Claimed, Terms};
use hapax_core::{Fingerprint, OperationId, Rule};
use hapax_stores::PostgresLedger;
use hapax_testkit::servers::{MissingService, PostgresSchema, PostgresServer, required};
use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;

use super::ledger::ledger;
use super::{POSTGRES, schema};

pub(super) fn tests() -> Vec<Trial> {
    SNIPPETS.iter().map(trial).collect()
}

/// A snippet, and what runs it.
struct LedgerSnippet {
    /// The language of the block.
    language: &'static str,
    /// The driver: a folder of `fixtures`.
    driver: &'static str,
    /// Follows the snippet.
    main: &'static str,
}

const SNIPPETS: [LedgerSnippet; 3] = [
    LedgerSnippet { language: "python", driver: "psycopg", main: include_str!("snippets/main.py") },
    LedgerSnippet { language: "js", driver: "node-postgres", main: include_str!("snippets/main.js") },
    LedgerSnippet { language: "go", driver: "pgx", main: include_str!("snippets/main.go") },
];

fn trial(snippet: &'static LedgerSnippet) -> Trial {
    Trial::ignorable_test(format!("postgres::a_snippet_in_{}_pays_once", snippet.language), move || {
        if let Err(missing) = required(POSTGRES).and_then(|_| required(snippet.driver)) {
            return MissingService::outcome(missing);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(pay(snippet));
        Ok(Completion::Completed)
    })
}

/// A program that pays for each line that it gets. It ends when it is dropped.
struct PayingProgram {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PayingProgram {
    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("it is open until the end"), "{line}").expect("the program reads");
    }

    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program prints text");
        line.trim_end().to_owned()
    }

    fn pay(&mut self, line: &str) -> String {
        self.send(line);
        self.receive()
    }

    /// Closes the input, and returns what the program prints then.
    fn end(mut self) -> String {
        drop(self.input.take());
        self.receive()
    }
}

impl Drop for PayingProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The snippet as a program, in a folder of its own.
struct BuiltSnippet {
    folder: TempDir,
    snippet: &'static LedgerSnippet,
}

impl BuiltSnippet {
    fn new(snippet: &'static LedgerSnippet) -> Self {
        let document = include_str!("../../../../../docs/ledger.md");
        let opening = format!("```{}\n", snippet.language);
        let (_, rest) = document.split_once(&opening).expect("the document has the snippet");
        let (code, _) = rest.split_once("```").expect("the block ends");
        let folder = tempfile::tempdir().unwrap();
        let built = Self { folder, snippet };
        if snippet.language == "go" {
            std::fs::write(built.path("pay.go"), code).unwrap();
            std::fs::write(built.path("main.go"), snippet.main).unwrap();
            let mut build = built.script();
            build.args(["build", "-o"]).arg(built.path("program")).args([built.path("pay.go"), built.path("main.go")]);
            let output = build.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        } else {
            std::fs::write(built.path("program"), format!("{code}\n{}", snippet.main)).unwrap();
        }
        built
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The script that runs the language with its driver.
    fn script(&self) -> Command {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        Command::new(fixtures.join(self.snippet.driver).join("server.sh"))
    }

    fn start(&self, url: &str) -> PayingProgram {
        let mut command = if self.snippet.language == "go" {
            Command::new(self.path("program"))
        } else {
            let mut script = self.script();
            script.arg(self.path("program"));
            script
        };
        command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        PayingProgram { child, input, output }
    }
}

/// A schema with the tables, which every session of its owner finds without naming it.
async fn shop() -> (PostgresSchema, PostgresLedger, String) {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), Terms::new("payments").unwrap());
    ledger.create_tables().await.unwrap();
    let name = schema.name();
    let tables = format!(
        "alter role {name} set search_path = {name};
         create table {name}.payment (operation uuid not null, amount integer not null check (amount > 0));
         grant all on {name}.payment to {name};
         set search_path to {name}"
    );
    schema.admin().batch_execute(&tables).await.unwrap();
    let url = schema.url().split_once('?').unwrap().0.to_owned();
    (schema, ledger, url)
}

fn operation(n: u8) -> OperationId {
    OperationId::from_bytes([n; 16])
}

async fn payments(schema: &PostgresSchema) -> (i64, i64) {
    let row = schema.admin().query_one("select count(*), count(distinct operation) from payment", &[]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn pay(snippet: &'static LedgerSnippet) {
    let (schema, ledger, url) = shop().await;
    let built = BuiltSnippet::new(snippet);
    let mut program = built.start(&url);
    let payload = Fingerprint::from_parts(Rule(1), [7; 12]);
    let other = Fingerprint::from_parts(Rule(1), [8; 12]);
    let one = operation(1);

    // A violated constraint leaves nothing behind. Then the operation runs, and every copy gets its answer.
    assert_eq!(program.pay(&format!("{one} {payload} -5")), "error 23514");
    assert_eq!(program.pay(&format!("{one} {payload} 5")), "fresh paid 5");
    assert_eq!(program.pay(&format!("{one} {payload} 5")), "replay paid 5");
    assert_eq!(program.pay(&format!("{one} - 5")), "replay paid 5");
    assert_eq!(program.pay(&format!("{one} {other} 6")), "mismatch -");
    assert_eq!(payments(&schema).await, (1, 1));

    // The ledger in Rust replays it, and the other way round.
    let copy = ledger.run(Call::new(one).fingerprint(payload), async |_, _| Ok(String::from("never"))).await.unwrap();
    assert_eq!((copy.answer, copy.provenance), ("paid 5".into(), Provenance::Replayed));
    ledger.run(Call::new(operation(2)), async |_, _| Ok(String::from("paid 2"))).await.unwrap();
    assert_eq!(program.pay(&format!("{} - 2", operation(2))), "replay paid 2");

    // While another transaction has claimed it, nothing runs and nothing waits.
    let mut holder = PostgresServer::shared().await.unwrap().client().await.unwrap();
    let transaction = holder.transaction().await.unwrap();
    let claimed = ledger.claim::<String>(&transaction, &Call::new(operation(3))).await.unwrap();
    assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
    assert_eq!(program.pay(&format!("{} - 3", operation(3))), "busy -");
    transaction.rollback().await.unwrap();
    drop(claimed);
    assert_eq!(program.pay(&format!("{} - 3", operation(3))), "fresh paid 3");
    race(&built, &url);
    if snippet.language == "python" {
        assert_eq!(program.end(), "refused");
    }
    assert_eq!(payments(&schema).await, (52, 52));
}

/// Two processes pay for the same 50 operations at the same time, until both have the answer of each.
fn race(built: &BuiltSnippet, url: &str) {
    let mut racers = [built.start(url), built.start(url)];
    for n in 100..150 {
        let line = format!("{} - 1", operation(n));
        let mut is_answered = [false; 2];
        for _ in 0..1000 {
            let open: Vec<usize> = (0..2).filter(|&racer| !is_answered[racer]).collect();
            open.iter().for_each(|&racer| racers[racer].send(&line));
            for racer in open {
                let said = racers[racer].receive();
                assert!(["fresh paid 1", "replay paid 1", "busy -"].contains(&&*said), "{said}");
                is_answered[racer] = said != "busy -";
            }
        }
        assert_eq!(is_answered, [true; 2]);
    }
}
