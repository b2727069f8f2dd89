//! The suite's setup of DynamoDB: each case has a table, on a server whose clock no other case steps.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::DynamoDb;
use hapax_testkit::servers::{DynamoDbServer, DynamoDbTable};
use hapax_testkit::{Backend, Capability, ClockStep, Setup, StoredPart, pause};
use serde_json::{Value, json};

pub(crate) fn backend() -> Backend {
    let backend = Backend::new("dynamodb", || async { Box::new(DynamoDbSetup::new().await) as Box<dyn Setup> });
    backend.requiring("dynamodb").lacking(&[
        (Capability::HighWaterMark, "the store keeps no token high-water mark"),
        (Capability::ExactClock, "the store reads its clock from replies, to about a second"),
        (Capability::RoomToComplete, "a table has no limit that a test could reach"),
    ])
}

/// How far the clock is stepped beyond what a case asks for, because the store knows it less exactly.
const BEYOND: Duration = Duration::from_millis(300);

/// The store must know the clock as exactly as this before a case goes on.
const EXACT: Duration = Duration::from_millis(100);

/// How long before the end of a second a step ends. The replies show whole seconds, so the store knows the clock best
/// when a second has just ended.
const BEFORE_TICK: Duration = Duration::from_millis(40);

/// How long the store reads from then on.
const AROUND_TICK: Duration = Duration::from_millis(70);

/// More reads than the store needs, also on a busy machine.
const MOST_READS: u32 = 10_000;

const SECOND: Duration = Duration::from_secs(1);

struct DynamoDbSetup {
    table: DynamoDbTable,
    store: Arc<DynamoDb>,
}

impl DynamoDbSetup {
    async fn new() -> Self {
        let table = DynamoDbServer::table().await.expect("the server starts");
        // Several cases share a server, which is slow.
        let url = format!("{}&timeout=20", table.url()).parse().expect("the URL is valid");
        let store = Arc::new(DynamoDb::with(&url, Arc::new(Tokio::current())).expect("the URL can be used"));
        let setup = Self { table, store };
        setup.step_clock(ClockStep::Forward(Duration::ZERO)).await;
        setup
    }

    fn server(&self) -> &DynamoDbServer {
        self.table.server()
    }

    /// Waits until the store knows the clock of the server exactly.
    async fn wait_for_clock(&self) {
        let nothing = RecordKey::from_bytes([0; 16]);
        for _ in 0..MOST_READS {
            let seen = self.store.read(&nothing).await.expect("the store answers");
            let off = self.server().clock().abs_diff(Duration::from_micros(seen.now.0));
            let is_exact = self.store.clock_uncertainty().is_some_and(|uncertainty| uncertainty < EXACT);
            if is_exact && off < 2 * EXACT {
                return;
            }
            // Replies between two ticks say little.
            while until_tick(self.server().clock()) < SECOND - AROUND_TICK {
                pause().await;
            }
        }
        panic!("the store does not get to know the clock of the server");
    }

    async fn call(&self, operation: &str, mut body: Value) -> Value {
        body["TableName"] = json!(self.table.name());
        self.server().call(operation, &body).await.expect("the server answers")
    }
}

/// How long it takes from this time until a little before the next second.
fn until_tick(time: Duration) -> Duration {
    let into = Duration::from_nanos(time.subsec_nanos().into());
    let left = 2 * SECOND - BEFORE_TICK - into;
    Duration::from_nanos(left.subsec_nanos().into())
}

#[async_trait]
impl Setup for DynamoDbSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        // Most records of a case end together, and a step takes time.
        if !seen.lease_left.is_zero() {
            self.step_clock(ClockStep::Forward(seen.lease_left)).await;
        }
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        if !seen.life_left.is_zero() {
            self.step_clock(ClockStep::Forward(seen.life_left)).await;
        }
    }

    async fn step_clock(&self, step: ClockStep) {
        let now = self.server().clock();
        let step = match step {
            ClockStep::Forward(by) => ClockStep::Forward(by + BEYOND + until_tick(now + by + BEYOND)),
            ClockStep::Back(by) => ClockStep::Back(by.saturating_sub(until_tick(now.saturating_sub(by)))),
        };
        self.server().step_clock(step).expect("its clock can be stepped");
        self.wait_for_clock().await;
    }

    /// Replaces the fingerprint, or changes the last letter of the answer.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let (name, value) = match part {
            StoredPart::Header => ("fp", "AAAAAAAAAAAAAAAAAA=="),
            // "the answes"
            StoredPart::Answer => ("a", "dGhlIGFuc3dlcw=="),
        };
        let key = json!({ "k": { "B": base64(rk) } });
        let stored = self.call("GetItem", json!({ "Key": key })).await;
        assert_ne!(stored["Item"][name]["B"], value, "the record must exist, and have another value");
        self.call(
            "UpdateItem",
            json!({
                "Key": key,
                "UpdateExpression": "SET #name = :value",
                "ConditionExpression": "attribute_exists(#name)",
                "ExpressionAttributeNames": { "#name": name },
                "ExpressionAttributeValues": { ":value": { "B": value } },
            }),
        )
        .await;
    }

    async fn put_golden(&self) {
        let item: Value = serde_json::from_str(include_str!("golden_v1.json")).expect("the file is JSON");
        self.call("PutItem", json!({ "Item": item })).await;
    }
}

fn base64(rk: &RecordKey) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(rk.as_bytes())
}
