//! What `hapax reconcile` finds and repairs while calls run, on each store and database.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax::machine::{Begin, Begun, Claim, Complete, Completed, Grant, Lapse, Resolved, Settled};
use hapax::outbox::{BUCKETS, Outbox, ReadRequest, ReadStart, bucket_of};
use hapax::relay::bucket_records;
use hapax::runtime::BoxFuture;
use hapax::store::Protocol;
use hapax::{
    Call, Fingerprint, Gate, Identity, Key, Millis, Owner, Record, RecordKey, Rule, Scope, Seconds, Settings, Store,
    Timestamp, ledger,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use crate::dead_letters::objects;
use crate::harness::{Gateway, hapax, until};

/// Books an effect with this text, or returns the text of an earlier copy.
pub(crate) type Book = Arc<dyn Fn(ledger::Call, String) -> BoxFuture<'static, String> + Send + Sync>;

/// A system: the records of a gateway, and a database with ledger and outbox.
pub(crate) struct System {
    pub(crate) store_url: String,
    pub(crate) records: Arc<dyn Store>,
    pub(crate) database_url: String,
    /// The claims of relays, in the database.
    pub(crate) claims: Arc<dyn Store>,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) book: Book,
    /// Changes a byte of a record, as another program could.
    pub(crate) damage: Box<dyn Fn(RecordKey) -> BoxFuture<'static, ()> + Send + Sync>,
}

/// The keys of two events that the outbox has: the first one is to be parked, the second one waits.
pub(crate) const EVENT_KEYS: [&str; 2] = ["to be parked", "waits"];

pub(crate) const DAY: Seconds = Seconds(24 * 3600);
/// The namespace of a worker whose messages have the operation of the gateway as their key.
pub(crate) const WORKER: &str = "posting";

/// What is found: its name, and the record, key or bucket.
pub(crate) type Found = BTreeSet<(String, String)>;

impl System {
    /// `longest` is the time for which a record must not have been touched.
    async fn reconcile(&self, longest: &str, more: &[&str]) -> Output {
        let flags = ["--longest-transaction", longest, "--unpublished-after", "10ms", "--worker-namespace", WORKER];
        self.reconcile_with(&[&flags, more].concat()).await
    }

    pub(crate) async fn reconcile_with(&self, flags: &[&str]) -> Output {
        let mut command = hapax();
        command.args(["reconcile", "--store", &self.store_url, "--database", &self.database_url, "--json"]);
        command.args(flags);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    pub(crate) fn protocol(&self) -> Protocol<'_> {
        Protocol::over(&*self.records)
    }

    /// A begun operation. The lease is over before anybody looks, unless it is long.
    pub(crate) async fn begin(&self, name: &str, lease: Millis) -> Grant {
        let ask =
            Begin { call: call(name), owner: Owner([7; 16]), lease, unknown_retention: DAY, on_lapse: Lapse::Hold };
        let Begun::Granted(grant) = self.protocol().begin(&ask).await.unwrap() else { panic!("{name} is not new") };
        grant
    }

    pub(crate) async fn book(&self, call: ledger::Call, text: &str) {
        assert_eq!((self.book)(call, text.to_owned()).await, text);
    }

    async fn record(&self, name: &str) -> Option<Record> {
        self.records.read(&call(name).record_key()).await.unwrap().live().cloned()
    }
}

/// The call of this operation.
pub(crate) fn call(name: &str) -> Call {
    let call = Identity::plain().call(&Scope::tenant("bank", "acme").unwrap(), &Key::new(name).unwrap());
    call.fingerprint(payload(name))
}

pub(crate) fn payload(text: &str) -> Fingerprint {
    Identity::plain().fingerprint(Rule(1), &[text.as_bytes()])
}

pub(crate) fn subject(name: &str) -> String {
    format!("urn:hapax:record:{}", call(name).record_key())
}

pub(crate) fn completion(grant: &Grant, answer: &'static [u8]) -> Complete {
    Complete {
        claim: Claim::from(grant),
        fingerprint: grant.fingerprint,
        answer: Bytes::from_static(answer),
        retention: DAY,
        ended: Timestamp(1),
        age: Duration::ZERO,
    }
}

pub(crate) const SHORT: Millis = Millis(1);
pub(crate) const LONG: Millis = Millis(3_600_000);

/// Leaves an operation in each healthy state that could be taken for another one. Returns their names.
async fn plant_healthy(system: &System) -> Vec<&'static str> {
    let protocol = system.protocol();
    system.begin("runs", LONG).await;
    let released = system.begin("released", LONG).await;
    assert_eq!(protocol.release(&released.rk, &Claim::from(&released), DAY).await.unwrap(), Settled::Yes);
    let dead = system.begin("closed", LONG).await;
    assert_eq!(protocol.bury(&dead.rk, &Claim::from(&dead), DAY).await.unwrap(), Settled::Yes);
    // A response with status 422: nothing was applied, so there is no row.
    let declined = system.begin("declined", LONG).await;
    let response = completion(&declined, &[1, 0x01, 0xA6, 0]);
    assert_eq!(protocol.complete(&declined.rk, &response).await.unwrap(), Completed::Done);
    let charged = system.begin("charged", LONG).await;
    system.book(ledger::Call::from(call("charged")), "charged").await;
    let done = protocol.complete(&charged.rk, &completion(&charged, b"charged")).await;
    assert_eq!(done.unwrap(), Completed::Done);
    // As a gateway writes it when it starts.
    let trial = system.begin("trial", LONG).await;
    let trial_end = Complete { retention: Seconds(60), ..completion(&trial, b"") };
    assert_eq!(protocol.complete(&trial.rk, &trial_end).await.unwrap(), Completed::Done);
    protocol.pin("bank", &Identity::keyed([7; 32]), Owner([9; 16])).await.unwrap();
    vec!["runs", "released", "closed", "declined", "charged", "trial"]
}

/// Leaves an operation in each state that is to be found. Returns those that can be repaired, and all others.
async fn plant_records(system: &System) -> (Found, Found) {
    let protocol = system.protocol();
    let [mut repairable, mut others] = [Found::new(), Found::new()];
    for name in ["committed and crashed", "committed and abandoned", "committed and held", "booked by a worker"] {
        let grant = system.begin(name, if name.ends_with("abandoned") { LONG } else { SHORT }).await;
        let operation = grant.rk.operation();
        if name.ends_with("worker") {
            let scope = Scope::untenanted(WORKER).unwrap();
            let derived = Identity::plain().record_key(&scope, &Key::new(operation.to_string()).unwrap()).operation();
            // The fingerprint of the message, not of the request.
            system.book(ledger::Call::new(derived).fingerprint(payload("the message")), name).await;
        } else {
            system.book(ledger::Call::from(call(name)), name).await;
        }
        if name.ends_with("abandoned") {
            assert_eq!(protocol.abandon(&grant.rk, &Claim::from(&grant)).await.unwrap(), Settled::Yes);
        }
        if name.ends_with("held") {
            hold(system, &grant).await;
        }
        repairable.insert(("effect-committed".to_owned(), subject(name)));
    }
    hold(system, &system.begin("held without a row", SHORT).await).await;
    others.insert(("outcome-unknown".to_owned(), subject("held without a row")));
    system.begin("reused", SHORT).await;
    let other = ledger::Call::from(call("reused")).fingerprint(payload("another payload"));
    system.book(other, "another payload").await;
    others.insert(("payload-differs".to_owned(), subject("reused")));
    let answered = system.begin("reused and answered", LONG).await;
    let other = ledger::Call::from(call("reused and answered")).fingerprint(payload("another payload"));
    system.book(other, "another payload").await;
    let done = protocol.complete(&answered.rk, &completion(&answered, b"charged")).await;
    assert_eq!(done.unwrap(), Completed::Done);
    others.insert(("payload-differs".to_owned(), subject("reused and answered")));
    let unbooked = system.begin("answered without a row", LONG).await;
    let done = protocol.complete(&unbooked.rk, &completion(&unbooked, b"charged")).await;
    assert_eq!(done.unwrap(), Completed::Done);
    others.insert(("no-ledger-row".to_owned(), subject("answered without a row")));
    let damaged = system.begin("damaged", LONG).await;
    (system.damage)(damaged.rk).await;
    others.insert(("record-damaged".to_owned(), subject("damaged")));
    (repairable, others)
}

/// Holds the record once its lease is over.
async fn hold(system: &System, grant: &Grant) {
    until("the lease is over", async || {
        system.protocol().hold(&grant.rk, grant.token, DAY).await.unwrap() == Resolved::Yes
    })
    .await;
}

/// Parks the first event, lets a relay that publishes nothing have the bucket of the second one, and spoils the claim
/// of another bucket.
async fn plant_in_outbox(system: &System) -> Found {
    let rows = system.outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 9, 1 << 20)).await.unwrap().rows;
    let refused = rows.iter().find(|row| row.event.order() == EVENT_KEYS[0]).unwrap();
    assert_eq!(system.outbox.park(&[refused.refused("too large")]).await.unwrap(), []);

    let (claims, protocol) = (bucket_records().unwrap(), Protocol::over(&*system.claims));
    let held = bucket_of(EVENT_KEYS[1].as_bytes());
    let spoilt = (held + 1) % BUCKETS;
    let claim = async |bucket: u8| {
        let call = Call::new(claims[usize::from(bucket)]);
        let owner = Owner([8; 16]);
        let ask = Begin { call, owner, lease: LONG, unknown_retention: DAY, on_lapse: Lapse::Retry };
        let Begun::Granted(grant) = protocol.begin(&ask).await.unwrap() else { panic!("the bucket is free") };
        grant
    };
    claim(held).await;
    let grant = claim(spoilt).await;
    assert_eq!(protocol.complete(&grant.rk, &completion(&grant, b"spoilt")).await.unwrap(), Completed::Done);
    let found = [
        ("key-parked", EVENT_KEYS[0].to_owned()),
        ("rows-unpublished", String::new()),
        ("bucket-stuck", held.to_string()),
        ("bucket-stuck", spoilt.to_string()),
    ];
    found.into_iter().map(|(finding, subject)| (finding.to_owned(), subject)).collect()
}

/// Calls that run through the gate and the ledger, new ones and copies, until it is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    ran: Arc<AtomicU32>,
}

impl Load {
    fn start(system: &System) -> Self {
        let load = Self { ends: Arc::default(), ran: Arc::default() };
        let gate = Gate::builder(Arc::clone(&system.records), Settings::default()).build().unwrap();
        for task in 0..2 {
            let (gate, book) = (gate.clone(), Arc::clone(&system.book));
            let (ends, ran) = (Arc::clone(&load.ends), Arc::clone(&load.ran));
            tokio::spawn(async move {
                for n in 0_u32.. {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    // Each call twice, one of them behind the other.
                    let name = format!("load {task} {}", n / 2);
                    let book = Arc::clone(&book);
                    let handler = |attempt: hapax::gate::Attempt| async move {
                        Ok(book(ledger::Call::from(&attempt), "load".into()).await)
                    };
                    assert_eq!(gate.run(call(&name), handler).await.unwrap().answer, "load");
                    ran.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            });
        }
        load
    }

    /// Waits until some more calls have run.
    async fn go_on(&self) {
        let before = self.ran.load(Ordering::SeqCst);
        until("the load goes on", async || self.ran.load(Ordering::SeqCst) > before + 20).await;
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

/// What one run found, and whether each was repaired. Asserts that its exit code and its summary agree.
pub(crate) fn found(output: &Output) -> BTreeMap<(String, String), bool> {
    let mut lines = objects(&String::from_utf8(output.stdout.clone()).unwrap());
    let summary = lines.pop().unwrap_or_else(|| panic!("{output:?}"));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let subject = |line: &Value| ["record", "key", "bucket"].iter().find_map(|name| line.get(name)).map(text);
    let entry = |line: &Value| {
        let name = (text(&line["finding"]), subject(line).unwrap_or_default());
        (name, line["repaired"].as_bool().unwrap())
    };
    let found: BTreeMap<_, _> = lines.iter().map(entry).collect();
    let left = found.values().filter(|is_repaired| !**is_repaired).count();
    assert_eq!((&summary["left"], found.len()), (&left.into(), lines.len()), "{output:?}");
    assert_eq!(output.status.code(), Some(i32::from(left > 0)), "{output:?}");
    found
}

pub(crate) fn names(found: &BTreeMap<(String, String), bool>) -> Found {
    found.keys().cloned().collect()
}

/// Plants each inconsistency while calls run. All are found, those that are certain are repaired, and nothing else is
/// touched.
pub(crate) async fn finds_and_repairs(system: &System) {
    let load = Load::start(system);
    load.go_on().await;
    let healthy = plant_healthy(system).await;
    let waits = Found::from([("rows-unpublished".to_owned(), String::new())]);
    let (repairable, mut others) = plant_records(system).await;
    // So far no relay has had the outbox, and every record is too young.
    let young = found(&system.reconcile("1h", &["--fix"]).await);
    let damaged = ("record-damaged".to_owned(), subject("damaged"));
    assert_eq!(names(&young), waits.iter().cloned().chain([damaged]).collect());
    others.extend(plant_in_outbox(system).await);
    let mut before = Vec::new();
    for name in &healthy {
        before.push(system.record(name).await);
    }

    let all: Found = repairable.union(&others).cloned().collect();
    until("everything is found", async || {
        load.go_on().await;
        let seen = names(&found(&system.reconcile("500ms", &[]).await));
        assert!(seen.is_subset(&all), "healthy: {:?}", seen.difference(&all));
        seen == all
    })
    .await;
    let fixed = found(&system.reconcile("500ms", &["--fix"]).await);
    assert_eq!(names(&fixed), all);
    let repaired: Found = fixed.into_iter().filter(|(_, is_repaired)| *is_repaired).map(|(name, _)| name).collect();
    assert_eq!(repaired, repairable);
    load.go_on().await;
    assert_eq!(names(&found(&system.reconcile("500ms", &["--fix"]).await)), others);
    for (name, before) in healthy.iter().zip(before) {
        assert_eq!(system.record(name).await, before, "{name}");
    }
    drop(load);
    retries_get_the_answer_of_the_ledger(system).await;
}

async fn retries_get_the_answer_of_the_ledger(system: &System) {
    let gate = Gate::builder(Arc::clone(&system.records), Settings::default()).build().unwrap();
    for name in ["committed and crashed", "committed and abandoned", "committed and held"] {
        let book = Arc::clone(&system.book);
        let handler = |attempt: hapax::gate::Attempt| async move {
            Ok(book(ledger::Call::from(&attempt), "a second effect".into()).await)
        };
        assert_eq!(gate.run(call(name), handler).await.unwrap().answer, name);
    }
}

/// A service that books the effect of each request under its operation, and does not answer the first one.
struct BookingService {
    address: SocketAddr,
    booked: Arc<AtomicU32>,
}

impl BookingService {
    async fn start(book: Book) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, booked) = (listener.local_addr().unwrap(), Arc::<AtomicU32>::default());
        let count = Arc::clone(&booked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (book, count) = (Arc::clone(&book), Arc::clone(&count));
                let service = service_fn(move |request| answer(request, Arc::clone(&book), Arc::clone(&count)));
                let builder = hyper::server::conn::http1::Builder::new();
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, booked }
    }
}

async fn answer(
    request: Request<Incoming>,
    book: Book,
    booked: Arc<AtomicU32>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    drop(body.collect().await);
    let operation = head.headers["hapax-operation"].to_str().unwrap().parse().unwrap();
    let number = booked.load(Ordering::SeqCst) + 1;
    let text = book(ledger::Call::new(operation), format!("booking {number}")).await;
    if booked.fetch_add(1, Ordering::SeqCst) == 0 {
        std::future::pending::<()>().await;
    }
    Ok(Response::builder().status(StatusCode::CREATED).body(Full::from(text)).unwrap())
}

/// A gateway is killed after the ledger has committed, and the next one holds the outcome as unknown. After the repair
/// the client gets the answer of the first run.
pub(crate) async fn heals_what_a_dead_gateway_left(system: &System, data: &Path) {
    let service = BookingService::start(Arc::clone(&system.book)).await;
    let flags = ["--lease", "1s", "--data-dir", data.to_str().unwrap()];
    let mut gateway = Gateway::start(service.address, &system.store_url, &flags).await;
    let client = gateway.client();
    let first = tokio::spawn(async move { client.post("/charges", "payment-1", "{}").await.is_none() });
    until("the effect is committed", async || service.booked.load(Ordering::SeqCst) == 1).await;
    let address = gateway.kill_and_return_address();
    assert!(first.await.unwrap(), "the client got an answer");

    let gateway = Gateway::start_at(service.address, &system.store_url, &flags, address).await;
    let held = gateway.retry_until_settled("/charges", "payment-1", "{}").await;
    assert_eq!((held.status.as_u16(), held.problem()), (409, "outcome-unknown"));
    until("it is repaired", async || {
        let found = found(&system.reconcile("100ms", &["--fix"]).await);
        found.iter().any(|((name, _), is_repaired)| name == "effect-committed" && *is_repaired)
    })
    .await;
    let healed = gateway.post("/charges", "payment-1", "{}").await.unwrap();
    assert_eq!((healed.status, healed.body.as_str()), (StatusCode::CREATED, "booking 1"));
    assert_eq!(service.booked.load(Ordering::SeqCst), 2, "the handler ran again, and its effect did not happen again");
}

/// The operations of a record: its own, and the one of the worker.
fn operations(name: &str) -> [String; 2] {
    let operation = call(name).record_key().operation().to_string();
    let scope = Scope::untenanted(WORKER).unwrap();
    let derived = Identity::plain().record_key(&scope, &Key::new(operation.clone()).unwrap()).operation();
    [operation, derived.to_string()]
}

/// The processor has the effect of one operation whose outcome is unknown, does not know another one, and does not have
/// the effect of some: of answers with and without a row, and of an unknown outcome.
pub(crate) async fn asks_the_processor(system: &System) {
    let protocol = system.protocol();
    for name in ["happened", "at the worker", "nobody knows", "both", "half", "not applied"] {
        let grant = system.begin(name, LONG).await;
        assert_eq!(protocol.abandon(&grant.rk, &Claim::from(&grant)).await.unwrap(), Settled::Yes);
    }
    for name in ["answered", "answered in vain"] {
        let grant = system.begin(name, LONG).await;
        system.book(ledger::Call::from(call(name)), name).await;
        protocol.complete(&grant.rk, &completion(&grant, b"done")).await.unwrap();
    }
    let unbooked = system.begin("answered without a row", LONG).await;
    protocol.complete(&unbooked.rk, &completion(&unbooked, b"done")).await.unwrap();
    let [own, derived] = ["happened", "at the worker"].map(operations);
    let (both, half) = (operations("both"), operations("half"));
    let absent = ["answered in vain", "answered without a row", "not applied"].map(operations).concat();
    // It contradicts itself, or knows of one operation only that it was not applied.
    let not_done = [&absent[..], &both, &half[..1]].concat();
    let done = [&own[..1], &derived[1..], &both[..], &operations("answered")[..1]].concat();
    let body = serde_json::json!({ "done": done, "not_done": not_done });
    let (address, asked) = start_processor(body.to_string()).await;
    let url = format!("http://{address}/effects");
    let expected = Found::from([
        ("effect-without-record".to_owned(), subject("happened")),
        ("effect-without-record".to_owned(), subject("at the worker")),
        ("outcome-unknown".to_owned(), subject("nobody knows")),
        ("outcome-unknown".to_owned(), subject("both")),
        ("outcome-unknown".to_owned(), subject("half")),
        ("outcome-unknown".to_owned(), subject("not applied")),
        ("record-without-effect".to_owned(), subject("answered in vain")),
        ("record-without-effect".to_owned(), subject("answered without a row")),
        ("no-ledger-row".to_owned(), subject("answered without a row")),
        ("rows-unpublished".to_owned(), String::new()),
    ]);
    let mut printed = Vec::new();
    until("everything is found", async || {
        let output = system.reconcile("1ms", &["--probe", &url]).await;
        printed = objects(&String::from_utf8(output.stdout.clone()).unwrap());
        names(&found(&output)) == expected
    })
    .await;
    let is_sure = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains("was not applied"));
    let sure: Vec<&Value> = printed.iter().filter(is_sure).map(|line| &line["record"]).collect();
    assert_eq!(sure, [&Value::from(subject("not applied"))]);
    let requests = asked.lock().clone();
    let of_last_run: BTreeSet<String> = requests.iter().rev().take(2).flatten().cloned().collect();
    let all = ["happened", "at the worker", "nobody knows", "both", "half", "not applied"].map(operations).concat();
    let completed = ["answered", "answered in vain", "answered without a row"].map(operations).concat();
    assert_eq!(of_last_run, BTreeSet::from_iter([all, completed].concat()));
    let nobody = system.reconcile("1ms", &["--probe", "http://127.0.0.1:1/effects"]).await;
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
}

/// The operations that each request asked about.
pub(crate) type Asked = Arc<parking_lot::Mutex<Vec<Vec<String>>>>;

/// Starts a processor that gives this answer to everything.
pub(crate) async fn start_processor(body: String) -> (SocketAddr, Asked) {
    start_processor_that(move || Box::pin(std::future::ready(body.clone()))).await
}

/// Starts a processor that does this before each answer, and answers with its result.
pub(crate) async fn start_processor_that(
    answer: impl Fn() -> BoxFuture<'static, String> + Send + Sync + 'static,
) -> (SocketAddr, Asked) {
    let answer = Arc::new(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Asked::default());
    let noted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
            let service = service_fn(move |request: Request<Incoming>| {
                let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
                async move {
                    let bytes = request.into_body().collect().await.unwrap().to_bytes();
                    let asked: Value = serde_json::from_slice(&bytes).unwrap();
                    let operations = asked["operations"].as_array().unwrap().iter();
                    noted.lock().push(operations.map(|id| id.as_str().unwrap().to_owned()).collect());
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer().await)))
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, asked)
}
