//! Tests of the gateway with PostgreSQL.

use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_testkit::servers::{self, PgBouncer, PostgresServer, PostgresServerOptions, Trial};
use http::StatusCode;

use crate::harness::{Api, Gateway, free_address, hapax, until};
use crate::torture::assert_one_effect_per_key;

pub(crate) fn tests() -> Vec<Trial> {
    let postgres = "postgres";
    vec![
        servers::test("every_key_has_one_effect_with_two_gateways_and_crashes", postgres, two_gateways),
        servers::test("a_gateway_starts_before_its_server", postgres, before_its_server),
        servers::test("a_role_that_may_not_create_tables_is_refused", postgres, without_rights),
        servers::test("a_server_that_does_not_sync_is_reported", postgres, no_sync),
        servers::test("another_role_runs_nothing_as_the_role_of_the_gateway", "pgbouncer", other_role),
        servers::test("a_standby_promoted_with_loss_is_reported", postgres, promoted_with_loss),
        servers::test("the_audit_of_the_demo_holds", postgres, demo_audit),
    ]
}

async fn start(arguments: &[&str]) -> PostgresServer {
    PostgresServer::start(PostgresServerOptions::new().with_args(arguments)).await.unwrap()
}

async fn two_gateways() {
    let server = PostgresServer::shared().await.unwrap();
    let (schema, directory) = (server.schema().await.unwrap(), tempfile::tempdir().unwrap());
    assert_one_effect_per_key(&schema.url(), directory.path()).await;
}

async fn before_its_server() {
    let (server, api, directory) = (start(&[]).await, Api::start().await, tempfile::tempdir().unwrap());
    server.kill();
    let flags = ["--upstream", &format!("http://{}", api.address), "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), &server.url(), &flags, free_address());
    let ready = async |status| {
        until("the gateway has another readiness", async || {
            gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == status)
        })
        .await;
    };
    ready(503).await;
    let refused = gateway.post("/charges", "early-key", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"));
    server.restart().await.unwrap();
    ready(200).await;
    let ran = gateway.post("/charges", "early-key", "{}").await.unwrap();
    assert_eq!(ran.status, StatusCode::CREATED);
    let copy = gateway.post("/charges", "early-key", "{}").await.unwrap();
    assert!(copy.is_replayed() && copy.body == ran.body, "{}", copy.body);
}

/// The error names the command that creates the tables, and not the password.
async fn without_rights() {
    let server = PostgresServer::shared().await.unwrap();
    let admin = server.client().await.unwrap();
    admin.batch_execute("create role no_rights login; create schema others").await.unwrap();
    let url = format!("postgres://no_rights:hush-hush@{}/postgres?schema=others", server.address());
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = hapax();
    gateway.args(["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    gateway.args(["--store", &url, "--data-dir", directory.path().to_str().unwrap()]);
    let output = gateway.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("hapax migrate --database"), "{errors}");
    assert!(!errors.contains("hush-hush"), "{errors}");
}

async fn no_sync() {
    let server = start(&["-c", "synchronous_commit=off"]).await;
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &server.url(), &flags).await;
    let metrics = gateway.get(gateway.admin, "/metrics").await.unwrap();
    assert!(metrics.body.contains("hapax_store_findings{severity=\"warn\"} 1\n"), "{}", metrics.body);
    // The check has also read how large the tables of claims are. Their indexes are never empty.
    let claims = metrics.body.lines().find_map(|line| line.strip_prefix("hapax_ledger_claims_bytes "));
    let bytes: f64 = claims.expect("the gauge is there").parse().unwrap();
    assert!(bytes > 0.0, "{bytes}");
}

/// As on PostgreSQL 14, everybody may create in `public`, which has the tables. Behind a pooler the gateway cannot
/// choose its search path.
async fn other_role() {
    let server = start(&[]).await;
    let pooler = PgBouncer::start(&server).await.unwrap();
    let admin = server.client().await.unwrap();
    admin.batch_execute(PLANT).await.unwrap();
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let url = format!("postgres://shop@{}/postgres", pooler.address());
    let flags = ["--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &url, &flags).await;
    let ran = gateway.post("/charges", "a-key", "{}").await.unwrap();
    let copy = gateway.post("/charges", "a-key", "{}").await.unwrap();
    assert!(ran.status == StatusCode::CREATED && copy.is_replayed(), "{}", copy.body);
    let stolen = admin.query("select role from stolen", &[]).await.unwrap();
    assert!(stolen.is_empty(), "the planted operator ran {} times", stolen.len());
    let metrics = gateway.get(gateway.admin, "/metrics").await.unwrap();
    assert!(metrics.body.contains("hapax_store_findings{severity=\"warn\"} 1\n"), "{}", metrics.body);
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert!(logs.contains("other roles may create objects in the schema public"), "{logs}");
    // A gateway does not start on a table that runs what others have written.
    let trigger = "create function spy() returns trigger language plpgsql as 'begin return new; end';
                   create trigger spy before insert on hapax_record for each row execute function spy()";
    admin.batch_execute(trigger).await.unwrap();
    let mut gateway = hapax();
    gateway.args(["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let output = gateway.args(["--store", &url]).args(flags).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("hapax_record has the trigger spy"), "{errors}");
}

/// PostgreSQL multiplies only a `double precision` with an interval, and converts other numbers.
const PLANT: &str = "
    create role shop login;
    create role other login;
    grant create on schema public to public;
    create table stolen (role text not null);
    grant insert on stolen to public;
    set role other;
    create function public.steal(bigint, interval) returns interval language sql volatile as
        'insert into public.stolen values (current_user); select $1::double precision * $2';
    create operator public.* (leftarg = bigint, rightarg = interval, function = public.steal);
    reset role";

/// The operation whose record was lost runs again: only a ledger could prevent that. The log and the metrics tell.
async fn promoted_with_loss() {
    let primary = start(&[]).await;
    let [replication, clients] =
        [Proxy::start(primary.address()).await.unwrap(), Proxy::start(primary.address()).await.unwrap()];
    let options = PostgresServerOptions::new().standby_of(replication.address());
    let standby = PostgresServer::start(options).await.unwrap();
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let url = format!("postgres://postgres@{}/postgres", clients.address());
    let gateway = Gateway::start(api.address, &url, &["--data-dir", directory.path().to_str().unwrap()]).await;
    let kept = gateway.post("/charges", "kept-key", "{}").await.unwrap();
    standby.catch_up_with(&primary).await.unwrap();
    replication.inject(NetworkFault::HalfOpen(Direction::ToClient));
    assert_eq!(gateway.post("/charges", "lost-key", "{}").await.unwrap().status, StatusCode::CREATED);
    primary.kill();
    standby.promote().await.unwrap();
    clients.redirect_to(standby.address());
    clients.reset();
    until("the gateway uses the new primary", async || {
        gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 200)
    })
    .await;
    let metrics = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
    assert!(metrics.contains("hapax_amnesia_total 1\n"), "{metrics}");
    assert!(metrics.contains("hapax_store_findings{severity=\"warn\"} 2\n"), "{metrics}");
    let copies = [gateway.post("/charges", "kept-key", "{}").await, gateway.post("/charges", "lost-key", "{}").await];
    let [kept_copy, lost_copy] = copies.map(Option::unwrap);
    assert!(kept_copy.is_replayed() && kept_copy.body == kept.body, "{}", kept_copy.body);
    assert!(!lost_copy.is_replayed() && api.count() == 3, "{}", lost_copy.body);
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    for event in ["the server has lost records since the last check", "the server has another timeline"] {
        assert_eq!(logs.matches(event).count(), 1, "{logs}");
    }
}

async fn demo_audit() {
    let server = PostgresServer::shared().await.unwrap();
    let schema = server.schema().await.unwrap();
    let flags = ["demo", "--payments", "150", "--crashes", "2", "--seed", "7", "--store"];
    let output = hapax().args(flags).arg(schema.url()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("The audit holds"), "{text}");
    let rows = schema.admin().query_one("select count(*) from hapax_record", &[]).await.unwrap();
    assert!(rows.get::<_, i64>(0) > 100, "the records must be in this schema");
}
