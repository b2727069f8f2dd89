//! The removal of old rows of a ledger, some at a time.

use std::time::Duration;

use hapax_core::ledger::{Call, Retention, Terms};
use hapax_core::{Identity, Key, Scope};
use hapax_stores::SqliteLedger;
use rusqlite::Connection;

fn run(ledger: &SqliteLedger, file: &mut Connection, key: usize) {
    let scope = Scope::tenant("transfers", "acme").unwrap();
    let call = Call::from(Identity::plain().call(&scope, &Key::new(key.to_string()).unwrap()));
    ledger.run(file, call, |_, _| Ok(String::from("done"))).unwrap();
}

#[test]
fn a_sweep_removes_the_old_rows_of_its_namespace_in_several_steps() {
    let mut file = Connection::open_in_memory().unwrap();
    SqliteLedger::migrate(&mut file).unwrap();
    let ledger_of = |namespace: &str, kept| {
        SqliteLedger::new(Terms::new(namespace).unwrap().retention(kept, Duration::ZERO).unwrap())
    };
    let hour = Retention::For(Duration::from_hours(1));
    let (ours, other) = (ledger_of("transfers", hour), ledger_of("others", hour));
    for key in 0..10 {
        run(&ours, &mut file, key);
        run(&other, &mut file, key);
    }
    // The rows have the ids 1 to 20, and those of `transfers` the odd ones.
    file.execute("update hapax_ledger set created_at = created_at - 7200000 where id <= 18", []).unwrap();

    let (mut after, mut steps) = (Some(0), 0);
    while let Some(from) = after {
        after = ours.sweep(&file, from, 3).unwrap();
        steps += 1;
        let looked_at = 3 * steps;
        let removed = "select count(*) from hapax_ledger where namespace = 'transfers' and id <= ?1";
        let left: i64 = file.query_row(removed, [looked_at.min(18)], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "after {steps} steps");
        assert!(steps <= 20, "a sweep ends");
    }
    assert_eq!(steps, 7, "20 rows, 3 at a time");
    let left = "select count(*) filter (where namespace = 'transfers'), count(*) from hapax_ledger";
    let left: (i64, i64) = file.query_row(left, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(left, (1, 11), "a young row, and those of the other namespace");
    let forever = ledger_of("others", Retention::Forever);
    assert_eq!(forever.sweep(&file, 0, 100).unwrap(), None);
    assert_eq!(file.query_row("select count(*) from hapax_ledger", [], |row| row.get::<_, i64>(0)).unwrap(), 11);
}
