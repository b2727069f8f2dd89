//! Writers of one file take turns.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hapax_core::OperationId;
use hapax_core::ledger::{Call, Terms};
use hapax_stores::SqliteLedger;
use rusqlite::Connection;

fn open(path: &std::path::Path) -> Connection {
    let mut connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_millis(500)).unwrap();
    connection.pragma_update(None, "synchronous", "off").unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    connection
}

/// Runs a new operation that takes a few milliseconds.
fn run(connection: &mut Connection, n: u64) -> bool {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_be_bytes());
    let ledger = SqliteLedger::new(Terms::new("turns").unwrap());
    let ran = ledger.run(connection, Call::new(OperationId::from_bytes(id)), |transaction, _| {
        let count = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 20000)
                     insert into effect select count(*) from n";
        transaction.execute(count, [])?;
        Ok(String::new())
    });
    ran.is_ok()
}

#[test]
fn a_writer_beside_others_that_never_pause_gets_its_turns() {
    const TURNS: u64 = 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    open(&path).execute_batch("pragma journal_mode = wal; create table effect (n integer)").unwrap();
    let (is_over, busy_runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let never_pauses = |writer: u64| {
        let (path, is_over, runs) = (path.clone(), Arc::clone(&is_over), Arc::clone(&busy_runs));
        thread::Builder::new().spawn(move || {
            let mut connection = open(&path);
            for n in 0..1_000_000 {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                runs.fetch_add(u32::from(run(&mut connection, (writer << 32) + n)), Ordering::Relaxed);
            }
        })
    };
    let busy = [1, 2].map(|writer| never_pauses(writer).unwrap());
    let mut connection = open(&path);
    while busy_runs.load(Ordering::Relaxed) < 10 {
        thread::yield_now();
    }
    let got = (0..TURNS).filter(|&n| run(&mut connection, n)).count();
    is_over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|busy| busy.join().unwrap());
    println!("{} runs of the others", busy_runs.load(Ordering::Relaxed));
    assert_eq!(got, 20, "turns");
    let mode = std::fs::metadata(directory.path().join("service.db.turn")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_turn_that_is_never_given_up_does_not_stop_other_writers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    let mut connection = open(&path);
    connection.execute_batch("create table effect (n integer)").unwrap();
    connection.busy_timeout(Duration::from_millis(20)).unwrap();
    let turn = std::fs::File::create(directory.path().join("service.db.turn")).unwrap();
    turn.lock().unwrap();
    assert!(run(&mut connection, 1), "the lock of SQLite is free");
}
