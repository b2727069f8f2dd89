//! Every copy on the way is made: a request, a message and an event that come twice, and a restart.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

#[path = "../../program.rs"]
mod program;

use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use hapax::stores::SqliteQueue;
use program::Program;
use rusqlite::Connection;

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-three-layers");

/// Killed when dropped.
struct Receipts(Child);

impl Receipts {
    fn start(folder: &str) -> Self {
        Self(Command::new(PROGRAM).args(["receipts", folder]).spawn().unwrap())
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait_until(file: &Path, query: &str, wanted: u32) {
    let begun = Instant::now();
    loop {
        let count = Connection::open(file).and_then(|file| file.query_row(query, [], |row| row.get::<_, u32>(0)));
        if count.as_ref().is_ok_and(|count| *count == wanted) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "`{query}` gives {count:?}, not {wanted}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn rows(file: &Path, query: &str) -> Vec<String> {
    let file = Connection::open(file).unwrap();
    let mut rows = file.prepare(query).unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Every message is in its queue twice, as after a lost acknowledgement.
fn double_messages(file: &Path) {
    let mut file = Connection::open(file).unwrap();
    SqliteQueue::migrate(&mut file).unwrap();
    file.execute_batch(
        "create trigger double after insert on hapax_queue begin
             insert into hapax_queue (queue, is_first, visible_at, enqueued_at, headers, payload)
             values (new.queue, 1, new.visible_at, new.enqueued_at, new.headers, new.payload);
         end",
    )
    .unwrap();
}

#[test]
fn a_payment_is_booked_once_and_has_one_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (bank_file, receipts_file) = (folder.path().join("bank.db"), folder.path().join("receipts.db"));
    double_messages(&bank_file);
    double_messages(&receipts_file);

    let bank = Program::start(PROGRAM, &["bank", path, "0"]);
    let first = bank.post("/payments", "order-1", "alice 500");
    assert_eq!((first.status, first.is_replay()), (202, false), "{}", first.body);
    assert_eq!(bank.post("/payments", "order-2", "bob 20").status, 202);
    wait_until(&bank_file, "select count(*) from hapax_queue", 0);
    wait_until(&bank_file, "select count(*) from hapax_outbox where state = 1", 2);
    drop(bank);

    let bank = Program::start(PROGRAM, &["bank", path, "0"]);
    let copy = bank.post("/payments", "order-1", "alice 500");
    assert_eq!((copy.status, copy.is_replay(), copy.body), (202, true, first.body));
    assert_eq!(bank.post("/payments", "order-1", "alice 600").status, 422);
    assert_eq!(bank.get("/payments").status, 405, "the layer lets other methods through");
    let receipts = Receipts::start(path);
    wait_until(&receipts_file, "select count(*) from receipt", 2);
    wait_until(&receipts_file, "select count(*) from hapax_queue", 0);
    drop((bank, receipts));
    assert_eq!(rows(&bank_file, "select payment from booking order by 1"), ["alice 500", "bob 20"]);
    assert_eq!(rows(&receipts_file, "select payment from receipt order by 1"), ["alice 500", "bob 20"]);
}
