//! A fault at every statement of a ledger's transactions, in SQLite.

use std::cell::Cell;
use std::sync::Arc;

use futures_util::FutureExt;
use hapax_core::OperationId;
use hapax_core::gate::{Failure, Reason};
use hapax_core::ledger::{
    Batch, Call, CallResult, Claimed, Entry, Event, Fault, FaultKind, Handler, HandlerFailure, Step, Terms, Work,
    attempt, claim_one, finish_one,
};
use hapax_stores::SqliteLedger;
use hapax_testkit::{FaultyTransaction, StatementFault};
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// What the runner or a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    One,
    FinalAnswer,
    /// Four calls, of which one fails.
    Batch,
    OwnTransaction,
}

fn call(n: u8) -> Call {
    Call::new(OperationId::from_bytes([n; 16]))
}

fn terms() -> Terms {
    Terms::new("transfers").unwrap()
}

/// Writes an effect and an event for each operation. Operation 3 fails.
struct Transfer<'t> {
    transaction: &'t Transaction<'t>,
    is_final: bool,
}

impl Handler<String> for Transfer<'_> {
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>> {
        for entry in &mut *entries {
            write(self.transaction, entry.operation())?;
            entry.emit(Event::new("transferred", "x"))?;
        }
        if self.is_final {
            return Err(HandlerFailure::of(0, Failure::finally("no".into())));
        }
        if entries.iter().any(|entry| entry.operation() == call(3).operation()) {
            return Err("operation 3 cannot be run".into());
        }
        Ok(entries.iter().map(|_| "transferred".to_owned()).collect())
    }
}

fn write(transaction: &Connection, operation: OperationId) -> rusqlite::Result<usize> {
    transaction.execute("insert into effect values (?1)", [operation.as_bytes()])
}

/// Commits, unless that is the disturbed statement. None: the caller is dropped there.
fn commit(transaction: Transaction<'_>, fault: StatementFault, statements: &Cell<usize>) -> Option<Result<(), Fault>> {
    statements.set(statements.get() + 1);
    let is_disturbed = statements.get() == fault.number;
    if !is_disturbed || fault.is_carried_out {
        transaction.commit().unwrap();
    }
    if !is_disturbed {
        return Some(Ok(()));
    }
    // Whatever is behind it, a COMMIT without a reply is unknown.
    fault.kind.map(|_| Err(Fault::new(FaultKind::CommitUnknown, "the reply is lost")))
}

fn begin(connection: &mut Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

/// Whether a call has ended. None: its caller does not know.
type HasEnded = Option<bool>;

fn has_ended(result: &CallResult<String>) -> HasEnded {
    match result {
        Ok(_) => Some(true),
        Err(refused) if matches!(refused.reason, Reason::Unknown { .. }) => None,
        Err(_) => Some(false),
    }
}

/// Runs the calls with one disturbance. Returns whether each has ended, if the caller is not dropped.
fn run(
    connection: &mut Connection,
    shape: Shape,
    fault: StatementFault,
    statements: &Cell<usize>,
) -> Option<Vec<HasEnded>> {
    if shape == Shape::OwnTransaction {
        return run_own(connection, fault, statements);
    }
    let calls = if shape == Shape::Batch { 1..=4 } else { 1..=1 };
    let work = calls.map(|n| Work { call: call(n), ordering_key: None, is_redelivered: false }).collect();
    let mut batch = Batch::<String>::new(terms(), work);
    loop {
        match batch.step() {
            Step::Pause(_) => {}
            Step::Transaction(slice) => {
                let transaction = begin(connection);
                let handler = Transfer { transaction: &transaction, is_final: shape == Shape::FinalAnswer };
                let mut faulty = FaultyTransaction::new(SqliteLedger::statements(&transaction), fault, statements);
                let attempted = attempt(&batch, &slice, &mut faulty, handler).now_or_never();
                drop(faulty);
                let attempted = attempted?;
                let is_ready = attempted.is_ready();
                let committed = if is_ready { commit(transaction, fault, statements)? } else { Ok(()) };
                batch.ended(slice, attempted, committed, 0);
            }
            Step::Count(_) => panic!("attempts are not counted here"),
            Step::Done => return Some(batch.into_results().iter().map(has_ended).collect()),
        }
    }
}

fn run_own(connection: &mut Connection, fault: StatementFault, statements: &Cell<usize>) -> Option<Vec<HasEnded>> {
    let transaction = begin(connection);
    let mut faulty = FaultyTransaction::new(SqliteLedger::statements(&transaction), fault, statements);
    let namespace = Arc::clone(terms().namespace());
    let claimed = claim_one::<_, String>(&mut faulty, &namespace, &call(1)).now_or_never()?;
    let mut entry = match claimed {
        Ok(Claimed::Fresh(entry)) => entry,
        Ok(claimed) => return Some(vec![Some(matches!(claimed, Claimed::Replay(_)))]),
        Err(_) => return Some(vec![Some(false)]),
    };
    write(&transaction, entry.operation()).unwrap();
    entry.emit(Event::new("transferred", "x")).unwrap();
    let finished = finish_one(&mut faulty, entry, &String::from("transferred")).now_or_never()?;
    drop(faulty);
    if finished.is_err() {
        return Some(vec![Some(false)]);
    }
    let committed = commit(transaction, fault, statements)?;
    Some(vec![committed.ok().map(|()| true)])
}

fn open() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    connection.execute_batch("create table effect (operation blob not null)").unwrap();
    connection
}

/// The operations in a table, one for each row.
fn operations(connection: &Connection, sql: &str) -> Vec<u8> {
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, [u8; 16]>(0)).unwrap();
    rows.map(|operation| operation.unwrap()[0]).collect()
}

/// Asserts that effects and events are those of the applied rows. Returns the operations that have ended.
fn ended(connection: &Connection) -> Vec<u8> {
    assert!(operations(connection, "select operation from hapax_ledger where open is not null").is_empty());
    let applied = operations(connection, "select operation from hapax_ledger where verdict = 1 order by 1");
    assert_eq!(operations(connection, "select operation from effect order by 1"), applied, "effects and rows");
    assert_eq!(operations(connection, "select operation from hapax_outbox order by 1"), applied, "events and rows");
    operations(connection, "select operation from hapax_ledger order by 1")
}

const UNDISTURBED: StatementFault = StatementFault { number: 0, is_carried_out: false, kind: None };

/// Disturbs the run at this point. Returns whether the run has the point.
fn holds_at(shape: Shape, fault: StatementFault) -> bool {
    let (mut connection, statements) = (open(), Cell::new(0));
    let results = run(&mut connection, shape, fault, &statements);
    let has_point = statements.get() >= fault.number;
    let after = ended(&connection);
    for (n, has_ended) in (1..).zip(results.unwrap_or_default()) {
        let has_row = after.contains(&n);
        assert!(has_ended.is_none_or(|has_ended| has_ended == has_row), "{n}: {has_ended:?}, row: {has_row}");
    }
    let again = run(&mut connection, shape, UNDISTURBED, &Cell::new(0)).unwrap();
    let expected: &[u8] = if shape == Shape::Batch { &[1, 2, 4] } else { &[1] };
    assert_eq!(ended(&connection), expected, "after a copy");
    let is_expected = (1..).zip(&again).all(|(n, has_ended)| *has_ended == Some(expected.contains(&n)));
    assert!(is_expected, "the copies got {again:?}");
    has_point
}

fn cover(shape: Shape) {
    let mut points = 0;
    for number in 1.. {
        let reached: Vec<bool> = StatementFault::all(number)
            .map(|fault| {
                let holds = std::panic::catch_unwind(|| holds_at(shape, fault));
                holds.unwrap_or_else(|_| panic!("{shape:?} does not hold with {fault:?}"))
            })
            .collect();
        points += reached.iter().filter(|is_reached| **is_reached).count();
        if !reached.contains(&true) {
            break;
        }
    }
    println!("{shape:?}: {points} points");
    assert!(points >= 3 * 14, "{points} points are too few for {shape:?}");
}

#[test]
fn a_fault_at_every_statement_of_one_call_leaves_nothing_by_halves() {
    cover(Shape::One);
}

#[test]
fn a_fault_at_every_statement_of_a_final_answer_leaves_nothing_by_halves() {
    cover(Shape::FinalAnswer);
}

#[test]
fn a_fault_at_every_statement_of_a_batch_leaves_nothing_by_halves() {
    cover(Shape::Batch);
}

#[test]
fn a_fault_at_every_statement_of_an_own_transaction_leaves_nothing_by_halves() {
    cover(Shape::OwnTransaction);
}
