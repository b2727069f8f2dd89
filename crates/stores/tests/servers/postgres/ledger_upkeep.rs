//! The removal of old rows of a ledger.

use std::time::Duration;

use hapax_core::gate::Failure;
use hapax_core::ledger::{Retention, Terms};
use hapax_stores::PostgresLedger;
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;

use super::ledger::{call, ledger, run};
use super::{POSTGRES, schema};
use crate::support::with_timeout;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_sweep_removes_old_rows_and_attempts_of_its_namespace", POSTGRES, sweep),
        servers::test("a_sweep_goes_through_the_pages_in_steps", POSTGRES, sweep_in_steps),
        servers::test("a_regular_sweep_goes_through_all_pages_again_and_again", POSTGRES, sweep_regularly),
    ]
}

fn ledger_of(schema: &PostgresSchema, namespace: &str) -> PostgresLedger {
    let terms = Terms::new(namespace).unwrap().max_attempts(2);
    ledger(&schema.url(), terms.retention(Retention::For(Duration::from_hours(1)), Duration::ZERO).unwrap())
}

async fn fail(ledger: &PostgresLedger, key: &str) {
    let failed = ledger.run(call(key), async |_, _| Err::<String, _>(Failure::from("it cannot be run"))).await;
    assert!(failed.is_err());
}

async fn sweep() {
    let schema = schema().await;
    let (ours, other) = (ledger_of(&schema, "transfers"), ledger_of(&schema, "others"));
    for ledger in [&ours, &other] {
        for key in ["one", "two", "three"] {
            run(ledger, key).await.unwrap();
        }
        // The first two have failed once, and the third one is closed.
        for key in ["four", "five", "six", "six"] {
            fail(ledger, key).await;
        }
    }
    let admin = schema.admin();
    let age = format!(
        "set search_path to {};
         update hapax_ledger set created_at = created_at - interval '2 hours' where ctid <> all (
             array(select ctid from hapax_ledger where namespace = 'transfers' order by ctid limit 1));
         update hapax_attempt set first_at = first_at - interval '2 hours'
          where attempts > 1 or ctid = any (
             array(select ctid from hapax_attempt where namespace = 'transfers' order by ctid limit 1))",
        schema.name()
    );
    admin.batch_execute(&age).await.unwrap();
    assert_eq!(ours.sweep(0).await.unwrap(), None);
    let count = "select count(*) filter (where namespace = 'transfers'), count(*) from";
    let row = admin.query_one(&format!("{count} hapax_ledger"), &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 4), "rows");
    // A closed operation stays closed for the retention after its last attempt.
    let row = admin.query_one(&format!("{count} hapax_attempt"), &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 5), "attempts");
    admin.batch_execute("update hapax_attempt set dead_at = dead_at - interval '2 hours'").await.unwrap();
    assert_eq!(ours.sweep(0).await.unwrap(), None);
    let row = admin.query_one(&format!("{count} hapax_attempt"), &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 4), "attempts");
}

/// Fills the ledger with this many old rows.
async fn fill(schema: &PostgresSchema, rows: u32) {
    let fill = format!(
        "set search_path to {};
         insert into hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer, created_at)
         select gen_random_uuid(), 'transfers', 1, 0, decode(repeat('00', 12), 'hex'), '',
                clock_timestamp() - interval '2 hours'
           from generate_series(1, {rows})",
        schema.name()
    );
    schema.admin().batch_execute(&fill).await.unwrap();
}

async fn count(schema: &PostgresSchema) -> i64 {
    schema.admin().query_one("select count(*) from hapax_ledger", &[]).await.unwrap().get(0)
}

async fn sweep_in_steps() {
    let schema = schema().await;
    let ledger = ledger_of(&schema, "transfers");
    ledger.create_tables().await.unwrap();
    fill(&schema, 20_000).await;
    let (mut from, mut steps) = (Some(0), 0);
    while let Some(page) = from {
        let before = count(&schema).await;
        from = ledger.sweep(page).await.unwrap();
        let removed = before - count(&schema).await;
        assert!((0..5_000).contains(&removed), "{removed} rows in one step");
        steps += 1;
        assert!(steps < 1_000, "a sweep ends");
    }
    assert!(steps > 3 && count(&schema).await == 0, "{steps} steps");
}

async fn sweep_regularly() {
    let schema = schema().await;
    let ledger = ledger_of(&schema, "transfers");
    ledger.create_tables().await.unwrap();
    let sweeps = ledger.sweep_regularly(Duration::from_millis(10));
    let filled_twice = async {
        for _ in 0..2 {
            fill(&schema, 2_000).await;
            while count(&schema).await > 0 {}
        }
    };
    let both = async {
        tokio::select! {
            () = sweeps => panic!("a sweep of a limited retention never ends"),
            () = filled_twice => {}
        }
    };
    with_timeout(Duration::from_secs(60), both).await.expect("old rows are removed");
    let forever = Terms::new("transfers").unwrap().retention(Retention::Forever, Duration::ZERO).unwrap();
    let forever = self::ledger(&schema.url(), forever);
    with_timeout(Duration::from_secs(60), forever.sweep_regularly(Duration::from_hours(1))).await.expect("it ends");
}
