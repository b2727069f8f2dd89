//! The outbox on PostgreSQL: what its suite cannot see, because other databases do not have it.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::{MarkedRows, OpenRow, Outbox, OutboxUpkeep, ReadRequest, ReadStart, RowId, RowState};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::Severity;
use hapax_core::{ErrorKind, Timestamp};
use hapax_stores::PostgresOutbox;
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::{POSTGRES, schema, schema_behind_proxy};
use crate::support::with_timeout;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("the_outbox_uses_its_indexes_at_every_size", POSTGRES, index_plans),
        servers::test("an_idle_transaction_does_not_slow_reads_behind_a_cursor", POSTGRES, idle_transaction),
        servers::test("writer_relay_and_operator_need_few_rights", POSTGRES, few_rights),
        servers::test("an_event_in_commit_order_waits_for_the_one_before", POSTGRES, commit_order),
        servers::test("an_event_out_of_its_limits_is_refused_with_a_remedy", POSTGRES, limits),
        servers::test("a_relay_is_notified_also_after_its_connection_broke", POSTGRES, notifications),
        servers::test("a_plain_insert_is_read", POSTGRES, plain_insert),
        servers::test("a_locked_row_keeps_no_other_row_from_its_mark", POSTGRES, locked_row),
        servers::test("a_republication_waits_for_marks_that_run_and_for_no_row", POSTGRES, republication),
        servers::test("a_relay_is_refused_without_tables_rights_or_a_log", POSTGRES, start_up),
        servers::test("a_sweep_goes_through_the_whole_table", POSTGRES, sweep),
    ]
}

fn outbox(url: &str) -> PostgresOutbox {
    PostgresOutbox::connect(&url.parse().unwrap()).unwrap()
}

/// An outbox with its tables, and a connection that works in its schema.
async fn with_tables() -> (PostgresSchema, PostgresOutbox) {
    let schema = schema().await;
    let outbox = outbox(&schema.url());
    outbox.horizon().await.expect("the tables are created");
    schema.admin().batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
    (schema, outbox)
}

pub(super) async fn connect(schema: &PostgresSchema, role: &str) -> Client {
    let url = schema.url().split_once('?').unwrap().0.replace(&format!("//{}@", schema.name()), &format!("//{role}@"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}

/// Ten open rows of each bucket.
fn first_rows() -> ReadRequest {
    ReadRequest::all_buckets(ReadStart::FIRST, 10, 1_000_000)
}

/// Inserts rows of 100 keys up to this number in all.
async fn fill(client: &Client, from: u32, to: u32, state: u8) {
    // With random ids each row would be on another page of their index, which takes three times as long.
    let fill = format!(
        "insert into hapax_outbox (event_id, namespace, okey, topic, payload, state, published_at)
         select lpad(n::text, 32, '0')::uuid, 'fill', int4send(n % 100), 'topic', 'payload', {state},
                case when {state} = 1 then clock_timestamp() end
           from generate_series({from} + 1, {to}) n"
    );
    client.batch_execute(&fill).await.unwrap();
}

/// An array with a value for each bucket.
fn list<T: Display>(value: &dyn Fn(u32) -> T) -> String {
    format!("'{{{}}}'", (0..64).map(|n| value(n).to_string()).collect::<Vec<_>>().join(","))
}

/// The lines of a plan.
async fn explain(client: &Client, statement: &str) -> String {
    let rows = client.query(&format!("explain {statement}"), &[]).await.unwrap();
    rows.iter().fold(String::new(), |mut plan, row| {
        writeln!(plan, "{}", row.get::<_, &str>(0)).unwrap();
        plan
    })
}

/// The default of `jit_above_cost`: a server with jit compiles a plan that costs more, which takes several tenths of a
/// second.
const JIT_ABOVE_COST: f64 = 100_000.0;

/// The planner's estimate of the cost of a plan.
fn cost(plan: &str) -> f64 {
    let total = plan.lines().next().and_then(|line| line.split_once(".."));
    total.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok()).unwrap()
}

/// The statements as they are sent, first without statistics, and with arguments that the planner cannot look into.
async fn index_plans() {
    let (schema, _outbox) = with_tables().await;
    let admin = schema.admin();
    let prepare = concat!(
        "alter table hapax_outbox set (autovacuum_enabled = off); set plan_cache_mode = force_custom_plan;",
        "prepare read (smallint[], bigint[], bigint[], bigint, bigint, text[], text[], bool[]) as ",
        include_str!("../../../src/postgres/outbox/read.sql"),
        ";prepare mark (bigint[], uuid[], bigint) as ",
        include_str!("../../../src/postgres/outbox/mark.sql"),
        ";prepare mark_unlocked (bigint[], uuid[], bigint) as ",
        include_str!("../../../src/postgres/outbox/mark_unlocked.sql"),
        ";prepare park (bigint[], uuid[], text[]) as ",
        include_str!("../../../src/postgres/outbox/park.sql"),
        ";prepare set_aside (bigint[], uuid[]) as ",
        include_str!("../../../src/postgres/outbox/set_aside.sql"),
        ";prepare counts (bigint) as ",
        include_str!("../../../src/postgres/outbox/counts.sql"),
        ";prepare find (uuid) as ",
        include_str!("../../../src/postgres/outbox/find.sql"),
        ";prepare reopen (bytea, bigint) as ",
        include_str!("../../../src/postgres/outbox/reopen.sql"),
        ";prepare drop_refused (bytea, uuid) as ",
        include_str!("../../../src/postgres/outbox/drop.sql"),
        ";prepare republish (bigint, bigint, bigint, bigint) as ",
        include_str!("../../../src/postgres/outbox/republish.sql"),
        ";prepare sweep (text, text, double precision, bigint) as ",
        include_str!("../../../src/postgres/outbox/sweep.sql"),
    );
    admin.batch_execute(prepare).await.unwrap();
    let (buckets, zeros, limits, all) = (list(&|n| n), list(&|_| 0), list(&|_| 1024), list(&|_| false));
    let events = format!("'{{{}}}'", vec!["00000000-0000-8000-8000-000000000000"; 64].join(","));
    let statements = [
        format!("read ({buckets}, {zeros}, {limits}, 1000000, 1024, '{{}}', '{{}}', {all})"),
        format!("mark ({buckets}, {events}, 0)"),
        format!("mark_unlocked ({buckets}, {events}, 0)"),
        format!("park ({buckets}, {events}, {buckets})"),
        format!("set_aside ({buckets}, {events})"),
        "counts (10000)".into(),
        "find ('00000000-0000-8000-8000-000000000000')".into(),
        "reopen ('key', 1000)".into(),
        "drop_refused ('key', null)".into(),
        "republish (0, 4000000000000000, 0, 1000)".into(),
        "sweep ('(0,0)', '(64,0)', 1, 1000)".into(),
    ];
    let mut rows = 0;
    // Nine of ten rows are published, as in a table that is kept.
    for (size, has_statistics) in [(0, false), (10_000, false), (1_000_000, false), (1_000_000, true)] {
        fill(admin, rows, rows + (size - rows) / 10 * 9, 1).await;
        fill(admin, rows + (size - rows) / 10 * 9, size, 0).await;
        rows = size;
        if has_statistics {
            admin.batch_execute("analyze hapax_outbox").await.unwrap();
        }
        for statement in &statements {
            let plan = explain(admin, &format!("execute {statement}")).await;
            // Each statement is planned when it is sent, so it may read a small table from end to end, unless a relay
            // sends it all the time.
            let is_constant = statement.starts_with("read") || statement.starts_with("mark");
            let must_use_index = size == 1_000_000 || is_constant && size > 0;
            let has_seq_scan = must_use_index && plan.contains("Seq Scan on hapax_outbox");
            // Rows that are named by their ids must not be searched among all open ones.
            let is_by_id = ["mark", "park", "set_aside", "republish"].iter().any(|name| statement.starts_with(name));
            let searches = is_by_id && plan.contains("hapax_outbox_open") && size > 0;
            assert!(!has_seq_scan && !searches, "{statement}, {size} rows:\n{plan}");
            assert!(cost(&plan) < JIT_ABOVE_COST, "{statement}, {size} rows:\n{plan}");
        }
    }
}

/// While a snapshot is old, nothing removes the entries of published rows from the index. A read from the beginning
/// passes all of them; one from a cursor does not.
async fn idle_transaction() {
    const ROWS: u32 = 300_000;
    let (schema, outbox) = with_tables().await;
    let admin = schema.admin();
    fill(admin, 0, ROWS, 0).await;
    let idle = connect(&schema, schema.name()).await;
    idle.batch_execute("begin isolation level repeatable read; select 1").await.unwrap();
    let publish = "update hapax_outbox set state = 1, published_at = clock_timestamp()";
    admin.batch_execute(publish).await.unwrap();
    fill(admin, ROWS, ROWS + 100, 0).await;
    let read = include_str!("../../../src/postgres/outbox/read.sql");
    let prepare =
        format!("prepare read (smallint[], bigint[], bigint[], bigint, bigint, text[], text[], bool[]) as {read}");
    admin.batch_execute(&prepare).await.unwrap();
    let blocks = async |after: u32| {
        let (buckets, behind, limits, all) = (list(&|n| n), list(&|_| after), list(&|_| 100), list(&|_| false));
        let read = format!(
            "(analyze, buffers) execute read ({buckets}, {behind}, {limits}, 1000000, 100, '{{}}', '{{}}', {all})"
        );
        let plan = explain(admin, &read).await;
        let line = plan.lines().find(|line| line.contains("Buffers: shared")).expect("the first line is the sum");
        let numbers = line.split([' ', '=']).filter_map(|word| word.parse::<u64>().ok());
        (numbers.sum::<u64>(), plan)
    };
    let (from_cursor, plan) = blocks(ROWS).await;
    let (from_zero, _) = blocks(0).await;
    println!("blocks that a read touches: {from_cursor} from a cursor, {from_zero} from the beginning");
    assert!(from_zero > 1_000, "the published rows cost nothing, so the test shows nothing");
    assert!(from_cursor < 2_000 && from_cursor * 10 < from_zero, "{from_cursor} of {from_zero}:\n{plan}");
    let found =
        outbox.read(&ReadRequest::all_buckets(ReadStart::behind(RowId(ROWS.into())), 100, 1_000_000)).await.unwrap();
    assert_eq!(found.rows.len(), 100);
    idle.batch_execute("commit").await.unwrap();
}

/// The rights that `docs/outbox.md` names are enough.
async fn few_rights() {
    let (schema, _owner) = with_tables().await;
    let name = schema.name();
    let [writer, relay, operator] = ["writer", "relay", "operator"].map(|part| format!("{name}_{part}"));
    let rights = include_str!("../../../../../docs/outbox_rights.sql");
    let grants = rights.replace("SCHEMA", name).replace("WRITER", &writer).replace("RELAY", &relay);
    let roles = format!(
        "create role {writer} login; create role {relay} login; create role {operator} login;
         revoke execute on all functions in schema {name} from public;"
    );
    schema.admin().batch_execute(&(roles + &grants.replace("OPERATOR", &operator))).await.unwrap();
    let writing = connect(&schema, &writer).await;
    let emit = format!("select {name}.hapax_emit('shop', null, null, 'topic', '', 'a', in_commit_order => true)");
    writing.batch_execute(&format!("set search_path to pg_catalog; {emit}; {emit}")).await.unwrap();
    for forbidden in ["select * from", "delete from", "update"] {
        let end = if forbidden == "update" { "set state = 1" } else { "" };
        let sql = format!("{forbidden} {name}.hapax_outbox {end}");
        writing.batch_execute(&sql).await.expect_err("a writer only inserts");
    }
    for (column, value) in [("id", "7"), ("state", "1"), ("created_at", "now()")] {
        let sql = format!(
            "insert into {name}.hapax_outbox (event_id, namespace, topic, payload, {column})
             values (gen_random_uuid(), 'shop', 'topic', 'x', {value})"
        );
        let refused = writing.batch_execute(&sql).await.expect_err("a writer chooses no place, state or time");
        assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{column}: {refused:?}");
    }

    let url_of = |role: &str| schema.url().replace(&format!("//{name}@"), &format!("//{role}@"));
    let relaying = outbox(&url_of(&relay));
    let rows = relaying.read(&first_rows()).await.unwrap().rows;
    assert_eq!(rows.len(), 2);
    relaying.horizon().await.unwrap();
    relaying.counts(10).await.unwrap();
    assert_eq!(relaying.mark(&[rows[0].named()], 0).await.unwrap().marked, 1);
    relaying.park(&[rows[1].refused("no")]).await.unwrap();
    relaying.set_aside(&[rows[1].named()]).await.unwrap();
    let refused = relaying.resume(b"a", 10).await.expect_err("only an operator resumes");
    assert_eq!(refused.kind(), ErrorKind::Unusable, "{refused:?}");
    relaying.sweep(Duration::ZERO, 10).await.unwrap();

    let operating = outbox(&url_of(&operator));
    assert_eq!(operating.parked(None, 10).await.unwrap().len(), 1);
    assert!(operating.find(rows[1].event.id).await.unwrap().is_some());
    assert_eq!(operating.drop_refused(b"a", None).await.unwrap(), Some(rows[1].event.id));
    assert_eq!(operating.resume(b"a", 10).await.unwrap(), Some(0));
    operating.begin_republication().await.unwrap();
    operating.republish(&(Timestamp(0)..Timestamp(u64::MAX)), RowId(0), 10).await.unwrap();
    operating.counts(10).await.unwrap();
}

async fn commit_order() {
    let (schema, outbox) = with_tables().await;
    let name = schema.name();
    let emit = |topic: &str, key: &str| {
        format!("select {name}.hapax_emit('shop', null, null, '{topic}', 'x', '{key}', in_commit_order => true)")
    };
    let (first, second) = (connect(&schema, name).await, connect(&schema, name).await);
    first.batch_execute(&format!("begin; {}", emit("one", "a"))).await.unwrap();
    second.batch_execute("begin").await.unwrap();
    second.batch_execute(&emit("other", "b")).await.expect("another key does not wait");
    let (client, statement) = (Arc::new(second), emit("two", "a"));
    let waiting = {
        let client = Arc::clone(&client);
        async move { client.batch_execute(&statement).await }
    };
    let mut waiting = std::pin::pin!(waiting);
    let waits = "select exists (select from pg_locks where locktype = 'advisory' and not granted)";
    loop {
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the second event does not wait");
        if schema.admin().query_one(waits, &[]).await.unwrap().get(0) {
            break;
        }
    }
    first.batch_execute("commit").await.unwrap();
    with_timeout(Duration::from_secs(30), waiting).await.expect("the key is free").unwrap();
    client.batch_execute("commit").await.unwrap();
    let rows = outbox.read(&first_rows()).await.unwrap().rows;
    let id = |topic: &str| rows.iter().find(|row| row.event.topic == topic).expect("the row is open").id;
    assert!(id("one") < id("two"));
}

async fn limits() {
    let (schema, _outbox) = with_tables().await;
    let writer = connect(&schema, schema.name()).await;
    for (arguments, message, remedy) in [
        ("'', null, null, 'topic', ''", "the namespace of an event is empty", "Name the service"),
        ("'shop', null, 1, 'topic', ''", "an event of an operation has a number", "Count the events"),
        ("'shop', gen_random_uuid(), null, 'topic', ''", "an event of an operation has a number", "Count"),
        ("'shop', gen_random_uuid(), -1, 'topic', ''", "an event of an operation has a number", "Count"),
        ("'shop', null, null, '', ''", "the topic of an event has 1 to 255 bytes", "Choose"),
        ("'shop', null, null, null, ''", "the topic of an event has 1 to 255 bytes", "Choose"),
        ("'shop', null, null, 'topic', '', ''", "the ordering key of an event has 1 to 255 bytes", "Give null"),
        ("'shop', null, null, 'topic', '', in_commit_order => true", "without an ordering key", "Give an ordering key"),
        ("'shop', null, null, 'topic', '', headers => '[]'", "are an object of texts", "Write them as"),
        ("'shop', null, null, 'topic', '', headers => '{\"a\": 1}'", "are an object of texts", "Write them as"),
        ("'shop', null, null, 'topic', null", "an event has a payload", "Store a large body"),
        ("'shop', null, null, 'topic', '', type => repeat('x', 256)", "have at most 255 bytes", "Choose shorter"),
        (
            "'shop', null, null, 'topic', '', source => repeat('\u{e9}', 128)",
            "have at most 255 bytes",
            "Choose shorter",
        ),
        (
            "'shop', null, null, 'topic', convert_to(repeat('x', 999999), 'UTF8'), headers => '{\"a\": \"b\"}'",
            "at most 1,000,000 bytes, headers included; this one has 1000001",
            "Store a large body",
        ),
    ] {
        let emit = format!("select {}.hapax_emit({arguments})", schema.name());
        let error = writer.batch_execute(&emit).await.expect_err(arguments);
        let reply = error.as_db_error().expect(arguments);
        assert!(reply.message().contains(message), "{arguments}: {}", reply.message());
        assert!(reply.hint().is_some_and(|hint| hint.starts_with(remedy)), "{arguments}: {:?}", reply.hint());
    }
    let plain = "insert into hapax_outbox (event_id, namespace, topic, payload, headers)
                 values (gen_random_uuid(), 'shop', 'topic', '', '[]')";
    schema.admin().batch_execute(plain).await.expect_err("headers that nobody can read");
    let plain = "insert into hapax_outbox (event_id, namespace, topic, payload, content_type)
                 values (gen_random_uuid(), 'shop', 'topic', '', repeat('x', 256))";
    let error = schema.admin().batch_execute(plain).await.expect_err("a content type that no sink has room for");
    assert!(error.as_db_error().is_some_and(|reply| reply.message().contains("at most 255 bytes")), "{error:?}");
}

async fn notifications() {
    let (schema, proxy) = schema_behind_proxy().await;
    let listening = Arc::new(outbox(&schema.url_at(proxy.address())));
    listening.horizon().await.unwrap();
    // The first wait ends when the connection listens, the next one by a notification.
    with_timeout(Duration::from_secs(30), listening.wait_for_rows()).await.expect("it listens");
    let next = listening.wait_for_rows();
    schema.admin().batch_execute("notify hapax_outbox").await.unwrap();
    with_timeout(Duration::from_secs(30), next).await.expect("it is notified");
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1 and query like 'listen%'";
    assert_eq!(schema.admin().query(cut, &[&schema.name()]).await.unwrap().len(), 1, "one connection listens");
    // Rows may have been committed while nobody listened.
    with_timeout(Duration::from_secs(30), listening.wait_for_rows()).await.expect("it listens again");
    let next = listening.wait_for_rows();
    schema.admin().batch_execute("notify hapax_outbox").await.unwrap();
    with_timeout(Duration::from_secs(30), next).await.expect("it is notified");
    drop(listening);
    let open = "select count(*) from pg_stat_activity where usename = $1 and query like 'listen%'";
    crate::support::until("the connection has ended with its outbox", async || {
        schema.admin().query_one(open, &[&schema.name()]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

/// Only the columns that have no default.
async fn plain_insert() {
    let (schema, outbox) = with_tables().await;
    let insert = "insert into hapax_outbox (event_id, namespace, topic, payload)
                  values ('f81d4fae-7dec-41d0-a765-00a0c91e6bf6', 'shop', 'topic', 'payload')";
    schema.admin().batch_execute(insert).await.unwrap();
    let rows = outbox.read(&first_rows()).await.unwrap().rows;
    assert_eq!(rows.len(), 1);
    let event = &rows[0].event;
    assert_eq!((&*event.namespace, &*event.topic, &event.payload[..]), ("shop", "topic", &b"payload"[..]));
    assert_eq!(event.id.to_string(), "f81d4fae-7dec-41d0-a765-00a0c91e6bf6");
    assert_eq!(rows[0].bucket, hapax_core::outbox::bucket_of(event.id.as_bytes()));
}

/// What a relay finds at its start.
async fn start_up() {
    let (schema, outbox) = with_tables().await;
    let name = schema.name();
    let refused = async |outbox: &PostgresOutbox| {
        let found = outbox.check().await.expect("the server answers");
        let refused = found.into_iter().filter(|finding| finding.severity == Severity::Refuse);
        refused.map(|finding| finding.message).collect::<Vec<_>>()
    };
    assert_eq!(refused(&outbox).await, [""; 0]);
    let isolation = format!("alter role {name} set default_transaction_isolation = 'repeatable read'");
    schema.admin().batch_execute(&isolation).await.unwrap();
    let found = refused(&self::outbox(&schema.url())).await;
    assert!(found.len() == 1 && found[0].contains("default_transaction_isolation"), "{found:?}");
    let reset = format!("alter role {name} reset default_transaction_isolation");
    schema.admin().batch_execute(&reset).await.unwrap();
    let role = format!("{name}_poor");
    let create = format!(
        "create role {role} login; grant usage on schema {name} to {role};
         grant select on all tables in schema {name} to {role}"
    );
    schema.admin().batch_execute(&create).await.unwrap();
    let poor = self::outbox(&schema.url().replace(&format!("//{name}@"), &format!("//{role}@")));
    let found = refused(&poor).await;
    assert!(found.len() == 1 && found[0].contains("lacks a right of a relay"), "{found:?}");
    schema.admin().batch_execute("alter table hapax_parked set unlogged").await.unwrap();
    let found = refused(&outbox).await;
    assert!(found.len() == 1 && found[0].contains("unlogged"), "{found:?}");
    schema.admin().batch_execute("drop table hapax_parked").await.unwrap();
    let found = refused(&outbox).await;
    assert!(found.len() == 1 && found[0].contains("the tables of Hapax are missing"), "{found:?}");
}

/// Somebody looks at a row with `for update`, and goes to lunch.
async fn locked_row() {
    let (schema, outbox) = with_tables().await;
    fill(schema.admin(), 0, 3, 0).await;
    let rows: Vec<_> = outbox.read(&first_rows()).await.unwrap().rows.iter().map(OpenRow::named).collect();
    let holder = connect(&schema, schema.name()).await;
    let lock = format!("begin; select from {}.hapax_outbox where id = {} for update", schema.name(), rows[1].id.0);
    holder.batch_execute(&lock).await.unwrap();
    let marked = with_timeout(Duration::from_secs(60), outbox.mark(&rows, 0)).await.expect("it does not wait").unwrap();
    assert_eq!(marked, MarkedRows { marked: 2, locked: vec![rows[1]], is_rewound: false });
    let again = with_timeout(Duration::from_secs(60), outbox.mark(&rows, 0)).await.expect("it does not wait").unwrap();
    assert_eq!(again, MarkedRows { marked: 0, locked: vec![rows[1]], is_rewound: false });
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(outbox.mark(&rows, 0).await.unwrap(), MarkedRows { marked: 1, ..MarkedRows::default() });
}

/// A mark that waits for a row runs while an operator begins a republication. Then somebody holds a published row.
async fn republication() {
    let (schema, outbox) = with_tables().await;
    let name = schema.name();
    fill(schema.admin(), 0, 2, 0).await;
    let rows: Vec<_> = outbox.read(&first_rows()).await.unwrap().rows.iter().map(OpenRow::named).collect();
    let holder = connect(&schema, name).await;
    let lock = |id: RowId| format!("begin; select from {name}.hapax_outbox where id = {} for update", id.0);
    let waits = async |kind: &str| {
        let waits = format!(
            "select exists (select from pg_locks l, pg_stat_activity a
                             where a.pid = l.pid and a.usename = '{name}' and not l.granted and l.locktype = '{kind}')"
        );
        schema.admin().query_one(&waits, &[]).await.unwrap().get::<_, bool>(0)
    };
    // A mark that waits for too long passes over the row. Then it did not run meanwhile, and all begins anew.
    let (marked, begun) = loop {
        holder.batch_execute(&lock(rows[0].id)).await.unwrap();
        let republications = outbox.read(&first_rows()).await.unwrap().rewinds.republications;
        let mut marking = std::pin::pin!(outbox.mark(&rows[..1], republications));
        let mut has_passed = false;
        while !has_passed && !waits("transactionid").await {
            has_passed = futures_util::poll!(marking.as_mut()).is_ready();
        }
        if has_passed {
            holder.batch_execute("commit").await.unwrap();
            continue;
        }
        let mut beginning = std::pin::pin!(async {
            outbox.begin_republication().await.unwrap();
            outbox.now().await.unwrap()
        });
        while !waits("advisory").await && waits("transactionid").await {
            assert!(futures_util::poll!(beginning.as_mut()).is_pending(), "it does not wait for the mark");
        }
        holder.batch_execute("commit").await.unwrap();
        let (marked, begun) = futures_util::future::join(marking, beginning).await;
        if marked.unwrap().marked == 1 {
            break (outbox.find(rows[0].event).await.unwrap().unwrap().1, begun);
        }
    };
    assert_eq!(marked, RowState::Published);
    let published = Timestamp(0)..begun;
    assert_eq!(outbox.republish(&published, RowId(0), 10).await.unwrap().unwrap().rows, 1, "it finds the mark");

    let republications = outbox.read(&first_rows()).await.unwrap().rewinds.republications;
    assert_eq!(outbox.mark(&rows[..1], republications).await.unwrap().marked, 1);
    holder.batch_execute(&lock(rows[0].id)).await.unwrap();
    let begun = with_timeout(Duration::from_secs(60), outbox.begin_republication()).await;
    begun.expect("it waits for no row").unwrap();
    let late = outbox.mark(&rows[1..], republications).await.unwrap();
    assert_eq!(late, MarkedRows { is_rewound: true, ..MarkedRows::default() });
    holder.batch_execute("commit").await.unwrap();
}

/// Old rows at the end of the table, behind more pages than one statement reads.
async fn sweep() {
    let (schema, outbox) = with_tables().await;
    fill(schema.admin(), 0, 30_000, 0).await;
    fill(schema.admin(), 30_000, 30_500, 1).await;
    let age = "update hapax_outbox set published_at = published_at - interval '1 day'";
    schema.admin().batch_execute(age).await.unwrap();
    let mut swept = 0;
    loop {
        match outbox.sweep(Duration::from_hours(1), 200).await.unwrap() {
            0 => break,
            step => {
                assert!(step <= 200, "{step}");
                swept += step;
            }
        }
    }
    assert_eq!(swept, 500);
    assert_eq!(outbox.sweep(Duration::from_hours(1), 200).await.unwrap(), 0);
}
