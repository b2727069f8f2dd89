//! A file that takes no writes is no failure of the handler: nothing is counted, and no message becomes a dead letter.

use std::path::Path;
use std::sync::Arc;

use hapax_core::broker::{Job, Message, Process, Verdict};
use hapax_core::gate::Reason;
use hapax_core::ledger::{Call, Entry, Terms};
use hapax_core::{ErrorKind, Identity, Key, OperationId, Scope};
use hapax_stores::SqliteLedger;
use rusqlite::{Connection, ErrorCode, Transaction};

/// How a file takes no writes. The rest of each transaction would have room.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// The disk is full.
    Full,
    /// The file system became read-only.
    ReadOnly,
}

impl Outage {
    fn begin(self, connection: &Connection) {
        match self {
            // A limit on the file has the error code of a full disk, and leaves room for the row of a counted attempt.
            Self::Full => {
                let pages: i64 = connection.query_row("pragma page_count", [], |row| row.get(0)).unwrap();
                connection.pragma_update(None, "max_page_count", pages + 20).unwrap();
            }
            Self::ReadOnly => {}
        }
    }

    /// What a handler of the service writes, with an error of the file.
    fn write(self, transaction: &Connection) -> rusqlite::Result<()> {
        match self {
            Self::Full => transaction.execute("insert into effect values (zeroblob(1000000))", []).map(drop),
            Self::ReadOnly => {
                transaction.pragma_update(None, "query_only", true)?;
                let written = transaction.execute("insert into effect values (x'00')", []).map(drop);
                transaction.pragma_update(None, "query_only", false)?;
                written
            }
        }
    }

    fn code(self) -> ErrorCode {
        match self {
            Self::Full => ErrorCode::DiskFull,
            Self::ReadOnly => ErrorCode::ReadOnly,
        }
    }
}

fn open(path: &Path) -> Connection {
    let mut connection = Connection::open(path).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    connection.execute_batch("create table if not exists effect (bytes blob)").unwrap();
    connection
}

fn count(path: &Path, table: &str) -> i64 {
    open(path).query_row(&format!("select count(*) from {table}"), [], |row| row.get(0)).unwrap()
}

pub(crate) fn job(n: u8) -> Job {
    let (scope, key) = (Scope::untenanted("shop").unwrap(), Key::new([n]).unwrap());
    let call = Identity::plain().call(&scope, &key);
    let (call, record_key) = (Call::from(call), call.record_key());
    Job { call, key, record_key, message: Arc::new(Message::default()), attempt: Some(20) }
}

/// More often than the ledger counts until it closes an operation.
const TRIES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_on_a_full_or_read_only_file_is_not_counted() {
    for outage in [Outage::Full, Outage::ReadOnly] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let connection = open(&path);
        outage.begin(&connection);
        let handler = move |transaction: &Transaction<'_>, _: &[Job], entries: &mut [Entry]| {
            outage.write(transaction)?;
            Ok(vec![String::new(); entries.len()])
        };
        let process = SqliteLedger::new(Terms::new("shop").unwrap()).process::<String, _>(connection, handler);
        for _ in 0..TRIES {
            for verdict in process.process(vec![job(1), job(2)]).await {
                assert!(matches!(verdict, Verdict::Pause { .. }), "{outage:?}: {verdict:?}");
            }
        }
        for table in ["hapax_attempt", "hapax_ledger", "effect"] {
            assert_eq!(count(&path, table), 0, "{outage:?}: {table}");
        }
    }
}

#[test]
fn a_run_on_a_full_or_read_only_file_may_be_repeated() {
    for outage in [Outage::Full, Outage::ReadOnly] {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = open(&directory.path().join("shop.db"));
        outage.begin(&connection);
        let error = outage.write(&connection).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(outage.code()));
        let ledger = SqliteLedger::new(Terms::new("shop").unwrap());
        let ran =
            ledger.run::<String, _>(&mut connection, Call::new(OperationId::from_bytes([1; 16])), |transaction, _| {
                outage.write(transaction)?;
                Ok(String::new())
            });
        let reason = ran.unwrap_err().reason;
        let expected = [ErrorKind::NotApplied, ErrorKind::Unusable].map(Reason::Store);
        assert!(expected.contains(&reason), "{outage:?}: {reason:?}");
    }
}
