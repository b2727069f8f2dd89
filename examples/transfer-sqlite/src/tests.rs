//! Delivers a transfer twice, and kills the first delivery at every point in between.

use hapax::testing::{Kill, deliver_twice};

use super::*;

#[test]
fn a_transfer_that_is_killed_anywhere_and_delivered_again_moves_the_money_once() {
    let ledger = SqliteLedger::new(Terms::new("transfers").unwrap());
    let scope = Scope::untenanted("transfers").unwrap();
    let call = Call::from(Identity::plain().call(&scope, &Key::new("order-7").unwrap()));
    let order = Order { from: "alice".into(), to: "bob".into(), amount: 5 };
    for kill in Kill::ALL {
        let mut bank = Connection::open_in_memory().unwrap();
        SqliteLedger::migrate(&mut bank).unwrap();
        bank.execute_batch(ACCOUNTS).unwrap();

        let deliver = || ledger.run(&mut bank, call, |bank, entry| transfer(bank, entry, &order)).unwrap();
        let delivered = deliver_twice(kill, deliver);
        assert_eq!(delivered.answer.answer, "alice gave bob 5", "killed {kill}");
        let was_committed = delivered.lost.is_some();
        assert_eq!(delivered.answer.provenance == Provenance::Replayed, was_committed, "killed {kill}");
        let read = "select (select balance from account where name = 'alice'), (select count(*) from hapax_outbox)";
        let found: (i64, i64) = bank.query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(found, (95, 1), "killed {kill}");
    }
}
