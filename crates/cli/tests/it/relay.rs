//! `hapax relay` from an outbox in SQLite to webhooks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use hapax::ledger::Event;
use hapax::stores::{SqliteLedger, SqliteOutbox};
use rusqlite::Connection;
use serde_json::Value;

use crate::harness::{Api, free_address, hapax, until};
use crate::moved_files::replace;
use crate::raw_http::RawConnection;

/// A file with an outbox, and the files of a relay.
struct Shop {
    directory: tempfile::TempDir,
    admin: SocketAddr,
}

impl Shop {
    fn new() -> Self {
        let shop = Self { directory: tempfile::tempdir().unwrap(), admin: free_address() };
        let mut connection = shop.connection();
        SqliteLedger::migrate(&mut connection).unwrap();
        SqliteOutbox::migrate(&mut connection).unwrap();
        shop.write_secret("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G\n");
        shop.write_secret("headers", "Authorization: Bearer of-the-relay\n\nX-Region:north\n");
        shop
    }

    fn write_secret(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn connection(&self) -> Connection {
        Connection::open(self.path("shop.db")).unwrap()
    }

    fn database(&self) -> String {
        format!("sqlite://{}", self.path("shop.db").display())
    }

    /// Writes events in one transaction. Returns their ids.
    fn emit(&self, events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let mut connection = self.connection();
        let transaction = connection.transaction().unwrap();
        let emit = |event| SqliteOutbox::emit(&transaction, "accounts", None, event).unwrap().to_string();
        let ids = events.into_iter().map(emit).collect();
        transaction.commit().unwrap();
        ids
    }

    /// The number of rows with this state.
    fn count(&self, state: u8) -> i64 {
        let sql = "select count(*) from hapax_outbox where state = ?1";
        self.connection().query_row(sql, [state], |row| row.get(0)).unwrap()
    }

    /// Writes a configuration with endpoints on this host. Returns its path.
    fn endpoints(&self, endpoints: &[(&str, String)]) -> String {
        let (secret, headers) = (self.path("secret").display().to_string(), self.path("headers"));
        let headers = headers.display().to_string();
        let endpoint = |(name, url): &(&str, String)| {
            format!(
                "[relay.endpoints.{name}]\nurl = '{url}'\nsecret-file = '{secret}'\nallow-http = 'on'\n\
                 header-file = '{headers}'\nallow-network = ['127.0.0.0/8']\n"
            )
        };
        let path = self.path("hapax.toml");
        std::fs::write(&path, endpoints.iter().map(endpoint).collect::<String>()).unwrap();
        path.display().to_string()
    }

    fn command(&self, flags: &[&str]) -> Command {
        let defaults = [("--database", self.database()), ("--lease", "2s".into()), ("--admin", self.admin.to_string())];
        let mut command = hapax();
        command.arg("relay");
        for (flag, value) in defaults.iter().filter(|(flag, _)| !flags.contains(flag)) {
            command.args([flag, &**value]);
        }
        command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn relay(&self, flags: &[&str]) -> RunningRelay {
        RunningRelay(self.command(flags).spawn().unwrap())
    }

    /// Runs `hapax outbox` with `--json`.
    fn outbox(&self, arguments: &[&str]) -> Vec<Value> {
        let output = hapax().arg("outbox").args(arguments).args(["--json", "--database", &self.database()]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn parked(&self) -> Vec<String> {
        self.outbox(&["list"]).iter().filter_map(|line| Some(line["key"].as_str()?.to_owned())).collect()
    }

    async fn page(&self, path: &str) -> (u16, String) {
        let mut admin = RawConnection::to(self.admin).await;
        admin.send_bytes(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await;
        let page = admin.read_response().await.unwrap();
        (page.status, page.text())
    }
}

/// A relay process, killed when dropped.
struct RunningRelay(Child);

impl RunningRelay {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }

    fn wait(mut self) -> Output {
        let child = std::mem::replace(&mut self.0, Command::new("true").spawn().unwrap());
        child.wait_with_output().unwrap()
    }

    /// Ends it by SIGTERM. Returns its log.
    fn terminate(self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let output = self.wait();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{log}");
        log
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn url(api: &Api, path: &str) -> String {
    format!("http://{}{path}", api.address)
}

fn event(topic: &str, key: &'static str, payload: &'static str) -> Event {
    Event::new(topic, payload).ordered_by(key)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_committed_event_reaches_its_endpoint_in_the_order_of_its_key() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let ids = shop.emit([event("paid", "acme", "one"), event("paid", "acme", "two"), event("sent", "other", "three")]);
    let config = shop.endpoints(&[("paid", url(&api, "/paid")), ("sent", url(&api, "/sent"))]);
    let relay = shop.relay(&["--config", &config]);
    until("all rows are published", async || shop.count(1) == 3).await;
    let seen = api.seen();
    let bodies = |path: &str| seen.iter().filter(|got| got.path == path).map(|got| &got.body[..]).collect::<Vec<_>>();
    assert_eq!((bodies("/paid"), bodies("/sent")), (vec![&b"one"[..], b"two"], vec![&b"three"[..]]));
    let first = seen.iter().find(|got| got.path == "/paid").unwrap();
    assert_eq!(first.headers["webhook-id"], ids[0].as_str());
    assert_eq!(first.headers["authorization"], "Bearer of-the-relay");
    assert_eq!(first.headers["x-region"], "north");
    assert!(first.headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    assert_eq!(shop.page("/readyz").await, (200, "ready\n".into()));
    until("the page shows what was done", async || {
        let (_, page) = shop.page("/metrics").await;
        page.contains("hapax_relay_events_total{sink=\"webhook\",result=\"yes\"} 3\n")
            && page.contains("hapax_relay_endpoint_events_total{endpoint=\"paid\",result=\"yes\"} 2\n")
            && page.contains("hapax_relay_endpoint_events_total{endpoint=\"sent\",result=\"refused\"} 0\n")
            && page.contains("hapax_outbox_open 0\n")
    })
    .await;
    let log = relay.terminate();
    assert!(log.contains("events are published; the sink takes events up to 1000000 bytes"), "{log}");
    assert!(!["acme", "whsec_", "of-the-relay"].iter().any(|secret| log.contains(secret)), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_reaches_a_service_once_through_a_queue_and_a_worker_without_any_server() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let ids = shop.emit([event("orders", "acme", "one"), event("orders", "acme", "two")]);
    let queue = format!("sqlite://{}?queue=orders", shop.path("orders.db").display());
    let relay = shop.relay(&["--sink", &queue]);
    let mut worker = hapax();
    worker.args(["worker", "--source", &queue, "--target", &url(&api, "/orders")]);
    worker.args(["--store", &format!("sqlite://{}", shop.path("records.db").display())]);
    worker.args(["--admin", &free_address().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    until("all rows are published", async || shop.count(1) == 2).await;
    let worker = RunningRelay(worker.spawn().unwrap());
    api.wait_for_requests(2).await;
    // The queue takes them once more, because it may have lost them. The worker recognizes them by their event ids.
    shop.outbox(&["republish", "--since", "1h"]);
    shop.emit([event("orders", "acme", "three")]);
    api.wait_for_requests(3).await;
    until("all rows are published", async || shop.count(1) == 3).await;
    drop(worker);
    relay.terminate();
    let bodies: Vec<_> = api.seen().iter().map(|request| request.body.clone()).collect();
    assert_eq!(bodies, ["one", "two", "three"], "{ids:?}");
}

/// Both files, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_publishes_nothing_into_a_file_that_was_replaced_and_nothing_out_of_one() {
    let shop = Shop::new();
    let orders = shop.path("orders.db");
    let relay = shop.relay(&["--sink", &format!("sqlite://{}?queue=orders", orders.display())]);
    shop.emit([event("orders", "acme", "one")]);
    until("the first event is published", async || shop.count(1) == 1).await;
    replace(&orders);
    until("the sink is not ready", async || {
        let (status, why) = shop.page("/readyz").await;
        status == 503 && why.contains("the sink: ") && why.contains("orders.db was replaced by another file")
    })
    .await;
    shop.emit([event("orders", "acme", "two")]);
    until("the relay tried to publish", async || {
        let (_, page) = shop.page("/metrics").await;
        let tried = page.lines().find(|line| {
            line.starts_with("hapax_relay_events_total{sink=\"sqlite/") && line.contains("result=\"not-published\"")
        });
        tried.is_some_and(|line| !line.ends_with(" 0"))
    })
    .await;
    assert_eq!(shop.count(1), 1, "the second event is not published");
    replace(&shop.path("shop.db"));
    until("the database is not ready", async || {
        let (status, why) = shop.page("/readyz").await;
        status == 503 && why.contains("the database: ") && why.contains("shop.db was replaced by another file")
    })
    .await;
    let log = relay.terminate();
    assert!(log.contains("orders.db was replaced by another file"), "{log}");
    // A new process publishes what is in the new files.
    let relay = shop.relay(&["--sink", &format!("sqlite://{}?queue=orders", orders.display())]);
    until("all events are published", async || shop.count(1) == 2).await;
    relay.terminate();
    let queued: u32 =
        Connection::open(orders).unwrap().query_row("select count(*) from hapax_queue", [], |row| row.get(0)).unwrap();
    assert_eq!(queued, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_a_relay_exists_from_the_start() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let _relay = shop.relay(&["--config", &shop.endpoints(&[("paid", url(&api, "/paid"))])]);
    until("the relay listens", async || std::net::TcpStream::connect(shop.admin).is_ok()).await;
    until("every metric is there", async || {
        let (_, page) = shop.page("/metrics").await;
        let source = include_str!("../../../core/src/telemetry/names.rs");
        let names = source.split(": &str = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let mut names = names.filter(|name| name.starts_with("hapax_relay_") || name.starts_with("hapax_outbox_"));
        names.all(|name| page.contains(&format!("# HELP {name} ")) && page.contains(&format!("# TYPE {name} ")))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_event_is_refused_waits_for_the_operator_and_others_go_on() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.emit([event("late", "acme", "one"), event("paid", "acme", "two"), event("paid", "other", "three")]);
    shop.emit([event("never", "third", "four"), event("paid", "third", "five")]);
    let relay = shop.relay(&["--config", &shop.endpoints(&[("paid", url(&api, "/paid"))])]);
    until("two keys are parked", async || shop.parked().len() == 2 && shop.count(1) == 1).await;
    let reasons = shop.outbox(&["list"]);
    assert!(reasons[0]["reason"].as_str().unwrap().contains("no endpoint has the name"), "{reasons:?}");
    relay.terminate();

    let endpoints = [("paid", url(&api, "/paid")), ("late", url(&api, "/late"))];
    let relay = shop.relay(&["--config", &shop.endpoints(&endpoints)]);
    shop.outbox(&["drop", "third", "--yes"]);
    shop.outbox(&["resume", "acme", "third"]);
    until("the rest is published", async || shop.count(1) == 4).await;
    assert_eq!((shop.parked(), shop.count(3)), (vec![], 1));
    relay.terminate();
    let bodies: Vec<_> = api.seen().iter().map(|request| request.body.clone()).collect();
    let place = |body: &str| bodies.iter().position(|other| other == body);
    assert!(place("one") < place("two") && place("five").is_some() && place("four").is_none(), "{bodies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_again_after_their_receiver_has_lost_them() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let ids = shop.emit([event("paid", "acme", "one"), event("paid", "acme", "two")]);
    let relay = shop.relay(&["--config", &shop.endpoints(&[("paid", url(&api, "/paid"))])]);
    until("all rows are published", async || shop.count(1) == 2).await;
    assert_eq!(shop.outbox(&["republish", "--since", "1h"])[0]["rows"], 2);
    until("they arrive again", async || api.count() == 4 && shop.count(1) == 2).await;
    relay.terminate();
    let seen: Vec<_> = api.seen().iter().map(|got| got.headers["webhook-id"].to_str().unwrap().to_owned()).collect();
    assert_eq!(seen, [&ids[..], &ids[..]].concat(), "under the same ids, in the same order");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_again_after_a_queue_that_remembers_them_has_lost_them() {
    let shop = Shop::new();
    let ids = shop.emit([event("orders", "acme", "one"), event("orders", "acme", "two")]);
    let queue = shop.path("orders.db");
    let relay = shop.relay(&["--sink", &format!("sqlite://{}?queue=orders", queue.display())]);
    until("all rows are published", async || shop.count(1) == 2).await;
    let queue = Connection::open(queue).unwrap();
    let keys = || -> Vec<String> {
        let mut rows = queue.prepare("select headers from hapax_queue order by id").unwrap();
        let key = |headers: String| {
            let headers: Vec<(String, String)> = serde_json::from_str(&headers).unwrap();
            headers.into_iter().find(|(name, _)| name == "Idempotency-Key").unwrap().1
        };
        rows.query_map([], |row| row.get(0)).unwrap().map(|headers| key(headers.unwrap())).collect()
    };
    // Twice: the second republication is another one.
    for _ in 0..2 {
        assert_eq!(queue.execute("delete from hapax_queue", []).unwrap(), 2);
        assert_eq!(shop.outbox(&["republish", "--since", "1h"])[0]["rows"], 2);
        until("they are marked again", async || shop.count(1) == 2).await;
        assert_eq!(keys(), ids, "under the same keys, in the same order");
    }
    relay.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stops_waits_for_what_is_in_flight() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.emit([event("paid", "acme", "one"), event("paid", "acme", "two")]);
    let relay = shop.relay(&["--config", &shop.endpoints(&[("paid", url(&api, "/slow"))])]);
    api.wait_for_requests(1).await;
    relay.signal(rustix::process::Signal::TERM);
    until("it is not ready any more", async || shop.page("/readyz").await.0 == 503).await;
    api.release_slow();
    let output = relay.wait();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((api.count(), shop.count(1), shop.count(0)), (1, 1, 1), "nothing new was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_ends_at_the_end_of_its_drain_and_at_once_at_a_second_signal() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.emit([event("paid", "acme", "one")]);
    let config = shop.endpoints(&[("paid", url(&api, "/slow"))]);
    let relay = shop.relay(&["--config", &config, "--drain", "10ms"]);
    api.wait_for_requests(1).await;
    let log = relay.terminate();
    assert!(log.contains("published again") || log.contains("it repeats those events"), "{log}");
    let relay = shop.relay(&["--config", &config, "--drain", "10min"]);
    api.wait_for_requests(2).await;
    relay.signal(rustix::process::Signal::TERM);
    until("it is stopping", async || shop.page("/readyz").await.0 == 503).await;
    relay.signal(rustix::process::Signal::TERM);
    assert_eq!(relay.wait().status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_sink_hangs_gives_its_other_buckets_back_at_the_end_of_its_drain() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.emit([event("hangs", "acme", "one")]);
    let config = shop.endpoints(&[("hangs", url(&api, "/slow")), ("paid", url(&api, "/paid"))]);
    let flags = ["--config", &*config, "--lease", "10min", "--drain", "2s"];
    let relay = shop.relay(&flags);
    api.wait_for_requests(1).await;
    let log = relay.terminate();
    assert!(log.contains("stopped with events that are not confirmed"), "{log}");
    // The bucket of the first event is left to lapse. This one is in another bucket.
    shop.emit([event("paid", "globex", "two")]);
    let relay = shop.relay(&flags);
    until("the other event is published", async || shop.count(1) == 1).await;
    shop.emit([event("paid", "initech", "three")]);
    until("a further one is published", async || shop.count(1) == 2).await;
    let sent = api.seen().iter().filter(|got| got.path == "/slow").count();
    assert_eq!(sent, 1, "its endpoint may still take the first event");
    relay.terminate();
}

#[test]
fn a_wrong_configuration_is_refused_with_its_remedy() {
    let shop = Shop::new();
    let secret = shop.path("secret").display().to_string();
    let config = shop.endpoints(&[("paid", "http://127.0.0.1:9/".into())]);
    let text = |name: &str, text: &str| {
        std::fs::write(shop.path(name), text).unwrap();
        shop.path(name).display().to_string()
    };
    let unknown = text("unknown.toml", "[relay.endpoints.paid]\nurll = 'https://a.example'\n");
    let bare = text("bare.toml", "[relay.endpoints.paid]\nurl = 'https://a.example'\n");
    shop.write_secret("no-headers", "X-Region: north\nhush-hush\n");
    let no_headers = text(
        "no_headers.toml",
        &format!(
            "[relay.endpoints.paid]\nurl = 'https://a.example'\nsecret-file = '{secret}'\nheader-file = '{}'\n",
            shop.path("no-headers").display()
        ),
    );
    for (flags, remedy) in [
        (&[][..], "sink is missing: give --sink URL"),
        (&["--sink", "gopher://broker"], "there is no sink for the scheme"),
        (&["--sink", "http://a.example/hook"], "write https://"),
        (&["--sink", "https://a.example/hook"], "add --webhook-secret-file FILE"),
        (&["--sink", "https://a.example/hook", "--config", &config], "hapax.toml:1: with --sink, no endpoint"),
        (&["--config", &unknown], "unknown.toml:2: unknown key urll in [relay.endpoints.paid]; did you mean url?"),
        (&["--config", &bare], "bare.toml:1: the endpoint paid has no secret-file"),
        (&["--config", &no_headers], "line 2 is no header field; write `Name: value`"),
        (&["--config", &config, "--webhook-secret-file", &secret], "only an https:// sink uses it"),
        (&["--config", &config, "--topic-template", "{topc}"], "{topc}"),
        (&["--config", &config, "--lease", "500ms"], "--lease: must be at least 1s"),
        (&["--config", &config, "--max-in-flight", "0"], "--max-in-flight: must be at least 1"),
    ] {
        let output = shop.command(flags).arg("--check").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {error}");
        assert!(error.contains(remedy) && !error.contains("hush-hush"), "{flags:?}: {error}");
    }
}

#[test]
fn a_check_opens_the_database_and_the_sink_and_names_what_is_missing() {
    let shop = Shop::new();
    let config = shop.endpoints(&[("paid", "http://127.0.0.1:9/hook?token=hush-hush".into())]);
    let checked = shop.command(&["--config", &config, "--check"]).output().unwrap();
    let shown = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{shown}{}", String::from_utf8_lossy(&checked.stderr));
    for line in ["topic-template", "ENDPOINT paid", "takes events up to 1000000 bytes", "are kept for 30days\nok\n"] {
        assert!(shown.contains(line) && !shown.contains("hush-hush"), "{line}: {shown}");
    }
    let config = shop.endpoints(&[("paid", "https://no-such-host.invalid/hook".into())]);
    let checked = shop.command(&["--config", &config, "--check"]).output().unwrap();
    let error = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(3), "{error}");
    assert!(error.contains("nothing can be delivered: the endpoint `paid`: no-such-host.invalid"), "{error}");
    for (database, code, remedy) in [
        ("sqlite:///tmp/hapax/there/is/no/such.db", 3, "does not exist"),
        ("postgres://relay:hush-hush@127.0.0.1:1/shop", 3, "cannot be reached"),
        ("redis://localhost", 2, "sqlite://PATH, postgres://HOST/DATABASE"),
    ] {
        let output = shop.command(&["--config", &config, "--check", "--database", database]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{database}: {error}");
        assert!(error.contains(remedy) && !error.contains("hush-hush"), "{database}: {error}");
    }
}

#[test]
fn a_check_writes_nothing_and_names_a_file_that_does_not_exist() {
    let shop = Shop::new();
    let path = |name: &str| shop.path(name).display().to_string();
    let names = || {
        let connection = shop.connection();
        let mut tables = connection.prepare("select name from sqlite_master order by name").unwrap();
        let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        tables
    };
    // It has no table for records, which a relay creates at its start.
    let before = names();
    std::fs::write(path("empty.db"), "").unwrap();
    for (sink, error) in [("no-queue.db", "no-queue.db does not exist"), ("empty.db", "empty.db has no queues yet")] {
        let output = shop.command(&["--sink", &format!("sqlite://{}", path(sink)), "--check"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{sink}: {told}");
        assert!(told.contains(error), "{told}");
    }
    let config = shop.endpoints(&[("paid", "http://127.0.0.1:9/hook".into())]);
    let checked = shop.command(&["--config", &config, "--check"]).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
    for command in [&["list"][..], &["resume", "--all"], &["republish", "--since", "1h"]] {
        let database = format!("sqlite://{}", path("misspelt.db"));
        let output = hapax().arg("outbox").args(command).args(["--database", &database]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{command:?}: {told}");
        assert!(told.contains("misspelt.db does not exist"), "{told}");
    }
    assert_eq!(names(), before);
    assert_eq!(std::fs::metadata(path("empty.db")).unwrap().len(), 0);
    assert!(!shop.path("no-queue.db").exists() && !shop.path("misspelt.db").exists());
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_broker_is_away_says_so_and_stops_when_asked() {
    let shop = Shop::new();
    let sink = format!("nats://{}", free_address());
    let relay = shop.relay(&["--sink", &sink]);
    // The page is served before the sink is open.
    until("it waits for the broker", async || {
        let answers = tokio::net::TcpStream::connect(shop.admin).await.is_ok();
        answers && shop.page("/readyz").await.1.contains("the sink: no NATS server can be reached")
    })
    .await;
    assert_eq!(shop.page("/readyz").await.0, 503);
    assert_eq!(shop.page("/healthz").await.0, 200);
    let log = relay.terminate();
    assert!(log.contains("the sink cannot be opened; it is tried again: no NATS server can be reached"), "{log}");
}
