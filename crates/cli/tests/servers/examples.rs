//! The commands of `hapax` that the guide shows for an example in Rust.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use hapax_testkit::servers::Trial;
use libtest_mimic::Completion;
use rusqlite::Connection;

use crate::harness::{hapax, until};

pub(crate) fn tests() -> Vec<Trial> {
    vec![Trial::ignorable_test("rust::records_and_ledger_of_the_three_layers_agree", move || {
        let program = Path::new(env!("CARGO_BIN_EXE_hapax")).with_file_name("example-three-layers");
        if !program.exists() {
            return Ok(Completion::ignored_with("cargo build -p example-three-layers has not run"));
        }
        tokio::runtime::Runtime::new()?.block_on(compares_records_and_ledger(&program));
        Ok(Completion::Completed)
    })]
}

/// Killed when dropped.
struct Bank(Child);

impl Drop for Bank {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn compares_records_and_ledger(program: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut bank = Bank(Command::new(program).args(["bank", path, "0"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(bank.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answer = pay(line.trim_end().strip_prefix("listening on http://").unwrap());
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let file = folder.path().join("bank.db");
    until("the payment is booked and announced", async || {
        let count = "select count(*) from booking, hapax_outbox where hapax_outbox.state = 1";
        let count = Connection::open(&file).and_then(|file| file.query_row(count, [], |row| row.get::<_, u32>(0)));
        count.is_ok_and(|count| count == 1)
    })
    .await;
    let told = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let agrees = reconcile(path, &["--worker-namespace", "bank", "--fix"]);
    assert_eq!(agrees.status.code(), Some(0), "{agrees:?}");
    assert_eq!(told(&agrees), "records compared: 1; repaired: 0; findings left: 0\n");
    // The row is under the operation that the worker derives. The advice names the flag.
    let without = reconcile(path, &[]);
    assert_eq!(without.status.code(), Some(1), "{without:?}");
    assert!(told(&without).contains("no-ledger-row") && told(&without).contains("--worker-namespace"), "{without:?}");
}

fn pay(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = "POST /payments HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9\r\n\
                Authorization: Bearer me\r\nIdempotency-Key: order-1\r\n\r\nalice 500";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn reconcile(folder: &str, more: &[&str]) -> Output {
    let (records, bank) = (format!("sqlite://{folder}/records.db"), format!("sqlite://{folder}/bank.db"));
    let mut command = hapax();
    command.args(["reconcile", "--store", &records, "--database", &bank, "--longest-transaction", "1ms"]);
    command.args(more).output().unwrap()
}
