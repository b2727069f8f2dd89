//! The plans of the ledger's statements and functions, at every size of its tables.

use std::future::poll_fn;
use std::sync::Arc;

use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use parking_lot::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use uuid::Uuid;

use super::POSTGRES;
use super::ledger_guard::{Parameters, claim, finish, operations, query, with_tables};

pub(super) fn tests() -> Vec<Trial> {
    vec![servers::test("claim_and_finish_use_the_key_at_every_size", POSTGRES, plans)]
}

const READ: &str = include_str!("../../../src/postgres/ledger/read.sql");
const ORDER: &str = include_str!("../../../src/postgres/ledger/order.sql");
const COUNT: &str = include_str!("../../../src/postgres/ledger/count.sql");
const REOPEN: &str = include_str!("../../../src/postgres/ledger/reopen.sql");
const ROWS_OF: &str = include_str!("../../../src/postgres/ledger/rows_of.sql");
const SWEEP: &str = include_str!("../../../src/postgres/ledger/sweep.sql");
const GUARD_ROWS: &str = include_str!("../../../src/postgres/ledger/guard_rows.sql");
const FINISH_EMIT: &str = include_str!("../../../src/postgres/ledger/finish_emit.sql");
const DONE_EMIT: &str = include_str!("../../../src/postgres/ledger/done_emit.sql");

/// A connection on which the server tells each plan with its costs, also those of the statements inside of functions.
struct ExplainedClient {
    client: Client,
    plans: Arc<Mutex<Vec<String>>>,
}

impl ExplainedClient {
    /// Connects as the owner of the schema, with these settings.
    async fn connect(schema: &PostgresSchema, settings: &str) -> Self {
        let (name, url) = (schema.name(), schema.url());
        let url = url.split_once('?').unwrap().0.replace(&format!("//{name}@"), "//postgres@");
        let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let plans = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&plans);
        let read = async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message {
                    told.lock().push(notice.message().to_owned());
                }
            }
        };
        Tokio::current().spawn(Box::pin(read));
        // Only a superuser may load it.
        let explain = format!(
            "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
             set auto_explain.log_level = notice; set session authorization {name}; set search_path to {name};
             {settings}"
        );
        client.batch_execute(&explain).await.unwrap();
        Self { client, plans }
    }

    /// The plans since the last call.
    fn take_plans(&self) -> Vec<String> {
        std::mem::take(&mut self.plans.lock())
    }
}

/// The costs of all nodes of a plan.
fn costs(plan: &str) -> impl Iterator<Item = f64> {
    plan.split("(cost=").skip(1).map(|node| {
        let cost = node.split_once("..").and_then(|(_, rest)| rest.split_once(' ')).expect("a node has a cost").0;
        cost.parse().expect("a cost is a number")
    })
}

/// The server compiles a statement whose cost is above this limit, which takes longer than to run it.
async fn jit_above_cost(client: &Client) -> f64 {
    let limit = "select current_setting('jit_above_cost')::double precision";
    client.query_one(limit, &[]).await.unwrap().get(0)
}

/// One connection keeps its plans while the table grows, is emptied, and grows again. Nothing is ever analysed.
async fn plans() {
    let (schema, _, owner) = with_tables().await;
    let off = "alter table hapax_ledger set (autovacuum_enabled = off);
               alter table hapax_attempt set (autovacuum_enabled = off)";
    owner.batch_execute(off).await.unwrap();
    let kept = ExplainedClient::connect(&schema, "").await;
    for (size, before) in [(0, 0), (10_000, 0), (1_000_000, 10_000), (0, 0), (10_000, 0)] {
        if size == 0 {
            owner.batch_execute("truncate hapax_ledger").await.unwrap();
        }
        let fill = format!(
            "insert into hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
             select ('ffffffff' || lpad(to_hex(n), 24, '0'))::uuid, 'transfers', 1, 0,
                    decode(repeat('00', 12), 'hex'), ''
               from generate_series({before} + 1, {size}) n"
        );
        owner.batch_execute(&fill).await.unwrap();
        let fresh = ExplainedClient::connect(&schema, "").await;
        // As after many calls on one connection.
        let generic = ExplainedClient::connect(&schema, "set plan_cache_mode = force_generic_plan").await;
        for (explained, namespace) in
            [(&kept, "transfers"), (&kept, "added"), (&fresh, "transfers"), (&generic, "transfers")]
        {
            assert_key_is_used(&explained.client, namespace, size).await;
            run_others(&explained.client, namespace).await;
            assert_plans_are_cheap(explained, size).await;
        }
    }
}

async fn assert_plans_are_cheap(explained: &ExplainedClient, size: u32) {
    let limit = jit_above_cost(&explained.client).await;
    let plans = explained.take_plans();
    for written in ["hapax_guard", "hapax_open", "hapax_ledger", "hapax_attempt", "hapax_outbox"] {
        let is_written = |plan: &String| plan.contains(&format!("Insert on {written}"));
        assert!(plans.iter().any(is_written), "no plan of {written} was told");
    }
    for plan in &plans {
        assert!(costs(plan).all(|cost| cost < limit), "{size} rows, more than {limit}: {plan}");
    }
}

/// How often these tables were scanned from end to end, and how many of their rows the keys have found. Not only in
/// this transaction: the server sums up later.
async fn counters(client: &Client, tables: &[&str]) -> (i64, i64) {
    let counters = "select coalesce(sum(seq_scan), 0)::bigint, coalesce(sum(idx_tup_fetch), 0)::bigint
                      from pg_stat_xact_user_tables
                     where relname = any ($1) and schemaname = current_schema";
    let row = query(client, counters, &[(&tables, Type::TEXT_ARRAY)]).await;
    (row.get(0), row.get(1))
}

async fn assert_key_is_used(client: &Client, namespace: &str, size: u32) {
    let tables = ["hapax_ledger", "hapax_attempt", "hapax_guard", "hapax_open"];
    let once = "select hapax_once($1, $2, null), hapax_once($1, $3, null)";
    let done = "select hapax_done($1, $2, ''), hapax_done($1, $3, '')";
    for (name, count) in [("one", 1), ("many", 256), ("own", 2)] {
        client.batch_execute("begin").await.unwrap();
        let (operations, before) = (operations(count), counters(client, &tables).await);
        if name == "own" {
            let parameters: &Parameters<'_> =
                &[(&namespace, Type::TEXT), (&operations[0], Type::UUID), (&operations[1], Type::UUID)];
            query(client, once, parameters).await;
            query(client, done, parameters).await;
        } else {
            let guard = claim(client, namespace, &operations).await;
            finish(client, &guard, namespace, &operations).await.unwrap();
        }
        assert_eq!(counters(client, &tables).await.0, before.0, "{name} in {namespace}, {size} rows");
        let before = counters(client, &tables[..1]).await;
        query(client, READ, &[(&namespace, Type::TEXT), (&operations, Type::UUID_ARRAY)]).await;
        let after = counters(client, &tables[..1]).await;
        client.batch_execute("rollback").await.unwrap();
        // It is planned anew each time, and an empty table has nothing to scan.
        assert!(after.0 == before.0 || size == 0, "read in {namespace}, {size} rows");
        // It finds the rows of the finish. A scan of the whole key would fetch more.
        assert!(after.1 - before.1 <= 256 || size == 0, "{name} in {namespace}, {size} rows: {after:?}");
    }
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// An event of each of these operations, as the last ten parameters of a statement that writes events.
struct EventArrays {
    ids: Vec<Uuid>,
    operations: Vec<Uuid>,
    numbers: Vec<i32>,
    keys: Vec<Option<&'static [u8]>>,
    topics: Vec<&'static str>,
    others: Vec<Option<&'static str>>,
    headers: Vec<&'static str>,
    payloads: Vec<&'static [u8]>,
}

impl EventArrays {
    fn of(operations: &[Uuid]) -> Self {
        let count = operations.len();
        Self {
            ids: operations.iter().map(|operation| Uuid::from_u128(operation.as_u128() + 1)).collect(),
            operations: operations.to_vec(),
            numbers: vec![0; count],
            keys: vec![None; count],
            topics: vec!["transfers"; count],
            others: vec![None; count],
            headers: vec!["{}"; count],
            payloads: vec![b"5"; count],
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 10] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.operations, Type::UUID_ARRAY),
            (&self.numbers, Type::INT4_ARRAY),
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.topics, Type::TEXT_ARRAY),
            (&self.others, Type::TEXT_ARRAY),
            (&self.others, Type::TEXT_ARRAY),
            (&self.others, Type::TEXT_ARRAY),
            (&self.headers, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
        ]
    }
}

async fn run(client: &Client, sql: &str, parameters: &Parameters<'_>) {
    client.query_typed(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Runs each statement of the ledger that the transactions above have not.
async fn run_others(client: &Client, namespace: &str) {
    let (operations, print) = (operations(256), &[7_u8; 12][..]);
    client.batch_execute("begin").await.unwrap();
    emit(client, namespace, &operations[1..]).await;
    let own = &operations[..1];
    run(client, "select hapax_once($1, $2, null)", &[(&namespace, Type::TEXT), (&own[0], Type::UUID)]).await;
    let events = EventArrays::of(own);
    let one: [Parameter<'_>; 2] = [(&namespace, Type::TEXT), (&own[0], Type::UUID)];
    let answer: [Parameter<'_>; 1] = [(&print, Type::BYTEA)];
    run(client, DONE_EMIT, &[&one[..], &answer, &events.parameters()].concat()).await;
    run(client, COUNT, &[&one[..], &[(&"it failed", Type::TEXT), (&3_i32, Type::INT4)]].concat()).await;
    run(client, REOPEN, &one).await;
    run(client, ROWS_OF, &[(&operations, Type::UUID_ARRAY)]).await;
    let (from, to, seconds) = ("(0,0)", "(16,0)", 3600_f64);
    let pages: [Parameter<'_>; 4] =
        [(&namespace, Type::TEXT), (&from, Type::TEXT), (&to, Type::TEXT), (&seconds, Type::FLOAT8)];
    run(client, SWEEP, &pages).await;
    run(client, GUARD_ROWS, &[]).await;
    client.batch_execute("rollback").await.unwrap();
}

/// Claims these operations as a runner, and finishes them with an event of each.
async fn emit(client: &Client, namespace: &str, operations: &[Uuid]) {
    let guard = claim(client, namespace, operations).await;
    let print = &[7_u8; 12][..];
    let (ones, prints) = (vec![1_i16; operations.len()], vec![print; operations.len()]);
    let events = EventArrays::of(operations);
    let rows: [Parameter<'_>; 7] = [
        (&guard, Type::TEXT),
        (&namespace, Type::TEXT),
        (&operations, Type::UUID_ARRAY),
        (&ones, Type::INT2_ARRAY),
        (&ones, Type::INT2_ARRAY),
        (&prints, Type::BYTEA_ARRAY),
        (&prints, Type::BYTEA_ARRAY),
    ];
    run(client, ORDER, &[(&prints, Type::BYTEA_ARRAY)]).await;
    run(client, FINISH_EMIT, &[&rows[..], &events.parameters()].concat()).await;
}
