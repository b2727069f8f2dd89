//! Many records while their server is killed, stopped or gets another clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::Store;
use hapax_core::machine::Begun;
use hapax_stores::Postgres;
use hapax_testkit::ClockStep;
use hapax_testkit::proxy::Proxy;
use libtest_mimic::Trial;

use super::{POSTGRES, schema, start, store};
use crate::grant_audit::GrantAudit;
use crate::support::{SECOND, test, until};

const KEYS: usize = 100;

const HOUR: Duration = Duration::from_secs(3600);

/// The default number of connections of a store.
const CONNECTIONS: u64 = 4;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("a_killed_server_loses_nothing", POSTGRES, killed),
        test("a_server_that_was_stopped_grants_nothing_twice", POSTGRES, stopped),
        test("connections_killed_under_load_lose_nothing", POSTGRES, || ended_under_load("pg_terminate_backend")),
        test("statements_cancelled_under_load_lose_nothing", POSTGRES, || ended_under_load("pg_cancel_backend")),
        test("a_clock_step_blocks_no_key", POSTGRES, clock_steps),
    ]
}

fn audit(store: &Arc<Postgres>) -> GrantAudit {
    GrantAudit::new(Arc::clone(store) as Arc<dyn Store>, KEYS)
}

async fn killed() {
    let server = start().await;
    let store = store(&server.url());
    let audit = audit(&store);
    let mut kills = 0;
    while kills < 3 || audit.unknown() == 0 {
        assert!(kills < 30, "no call was in flight during {kills} kills");
        kills += 1;
        let is_up = AtomicBool::new(false);
        let races = async {
            while !is_up.load(Ordering::Acquire) {
                audit.race(true).await;
            }
        };
        let restart = async {
            server.restart().await.unwrap();
            is_up.store(true, Ordering::Release);
        };
        tokio::join!(races, restart);
    }
    audit.race(true).await;
    audit.assert_answers_stand().await;
}

/// All callers time out and repeat their calls while the server is stopped; then it executes everything that was sent.
async fn stopped() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = store(&format!("postgres://postgres@{}/postgres", proxy.address()));
    let audit = audit(&store);
    store.read(&audit.keys()[0].0.record_key()).await.unwrap();
    server.pause().unwrap();
    let resume = async {
        until("all callers have timed out", || async { audit.unknown() >= 3 * KEYS as u64 }).await;
        let opened = proxy.counts().connections;
        assert!(opened <= 2 * CONNECTIONS, "cancelled calls leave {opened} sessions on the server");
        server.resume().unwrap();
    };
    let (granted, ()) = tokio::join!(audit.race(true), resume);
    assert_eq!(granted, KEYS as u64);
    audit.assert_answers_stand().await;
}

/// Ends sessions or statements that are active, some of them at their commit.
async fn ended_under_load(function: &str) {
    let schema = schema().await;
    let store = store(&schema.url());
    let audit = audit(&store);
    let mut race = Box::pin(audit.race(true));
    let kill = format!(
        "select {function}(pid) from pg_stat_activity where usename = '{}' and state = 'active' limit 1",
        schema.name()
    );
    let mut killed = 0;
    let granted = loop {
        tokio::select! {
            granted = race.as_mut() => break granted,
            sessions = schema.admin().execute(&kill, &[]), if killed < KILLS => killed += sessions.unwrap(),
        }
    };
    println!("{killed} times {function}, {} calls unknown", audit.unknown());
    assert_eq!(granted, KEYS as u64);
    audit.assert_answers_stand().await;
    assert!(killed > 3);
}

/// After this many, the calls can end.
const KILLS: u64 = 100;

/// Clock back: the next begin sets the lease again. Clock forward: every lease has expired, and the next begin holds
/// the record.
async fn clock_steps() {
    let schema = schema().await;
    let store = store(&schema.url());
    let audit = audit(&store);
    assert_eq!(audit.race(false).await, KEYS as u64);
    schema.step_clock(ClockStep::Back(5 * HOUR)).await.unwrap();
    assert_eq!(audit.race(false).await, 0);
    schema.step_clock(ClockStep::Forward(Duration::from_secs(31))).await.unwrap();
    for operation in audit.keys() {
        let begun = operation.begin(&*store, SECOND).await.unwrap();
        assert!(matches!(begun, Begun::Indeterminate(_)), "{begun:?}");
    }
}
