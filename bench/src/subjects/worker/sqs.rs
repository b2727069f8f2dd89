use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use futures_util::future::{join_all, try_join_all};
use hapax_brokers::{SqsSource, SqsUrl};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_net::aws::{AwsCall, AwsClient, AwsCredentials, AwsEndpoint};
use hapax_net::http::{AnswerLimits, HttpClient, HttpSettings};
use hapax_testkit::servers::ElasticMqServer;
use serde_json::{Value, json};
use uuid::Uuid;

use super::drain::{DrainPlan, drain};
use super::loops::{self, LoopBody, LoopKind, ReceivedMessage};
use super::{AT_ONCE, BATCH, PAYLOAD, Servers, random, unpack};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, own_seconds_of_cpu};

const MESSAGES: usize = 20 * BATCH;

/// The most messages of a call.
const CALL: usize = 10;

/// How many calls of the producer are on the way at once.
const CALLS: usize = 16;

/// How many calls of the loop ask for messages at once. It is the default of the source.
const RECEIVERS: usize = 2;

/// Batches from a standard queue, beside a loop that makes the calls alone.
pub(super) fn batches(servers: &Rc<Servers>) -> Subject {
    let queues =
        Rc::new(StandardQueues { servers: Rc::clone(servers), server: OnceCell::new(), created: Cell::new(0) });
    Subject {
        name: "worker, SQS to PostgreSQL, batches",
        what: "an insert with its row of the ledger, up to 256 to a transaction, 4 at once; a standard queue of \
               ElasticMQ",
        run: Rc::clone(&queues).by_worker(),
        limit: Some(Limit {
            what: "the same set-based inserts with bare claim rows, up to 256 to a transaction, by a bare loop",
            run: queues.by_loop(),
            at_least: Some(0.7),
        }),
    }
}

/// A server, with a queue for each measurement.
struct StandardQueues {
    servers: Rc<Servers>,
    /// Started by the first measurement.
    server: OnceCell<ElasticMqServer>,
    created: Cell<usize>,
}

impl StandardQueues {
    fn server(&self) -> anyhow::Result<&ElasticMqServer> {
        if self.server.get().is_none() {
            unpack("elasticmq")?;
            self.server.set(self.servers.runtime.block_on(ElasticMqServer::start(&[]))?).ok();
        }
        self.server.get().context("the lines above set it")
    }

    /// A new queue with messages.
    fn filled(&self) -> anyhow::Result<BareQueue> {
        let server = self.server()?;
        self.created.set(self.created.get() + 1);
        let name = format!("queue-{}", self.created.get());
        self.servers.runtime.block_on(async {
            let queue = BareQueue::create(server, &name).await?;
            queue.fill().await?;
            Ok(queue)
        })
    }

    fn by_worker(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let queue = self.filled()?;
            let process = loops::process(&self.servers.ledger()?);
            self.servers.runtime.block_on(async {
                let source = SqsSource::connect(&queue.url, Arc::new(Tokio::current())).await?;
                let result = drain(Box::new(source), process, DrainPlan::new(MESSAGES, AT_ONCE, BATCH)).await?;
                queue.url.delete_queue(Arc::new(Tokio::current())).await?;
                Ok(result)
            })
        })
    }

    fn by_loop(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let queue = self.filled()?;
            let body = self.servers.body(LoopKind::Claims)?;
            self.servers.runtime.block_on(async {
                let result = queue.read(body).await?;
                queue.url.delete_queue(Arc::new(Tokio::current())).await?;
                Ok(result)
            })
        })
    }
}

/// A queue, with the client for the calls of the producer and of the loop.
struct BareQueue {
    client: AwsClient,
    url: SqsUrl,
    /// As calls name it.
    address: String,
}

/// A message, and what deletes it.
struct BareMessage {
    message: ReceivedMessage,
    receipt: Value,
}

impl BareQueue {
    async fn create(server: &ElasticMqServer, name: &str) -> anyhow::Result<Self> {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime)))?;
        let uri = format!("http://{}/", server.address()).parse()?;
        let (region, credentials) = ("elasticmq".to_owned(), AwsCredentials::of_a_stand_in());
        let endpoint = AwsEndpoint { uri, region, service: "sqs", target: "AmazonSQS", credentials };
        let client = AwsClient::new(endpoint, http, Arc::clone(&runtime))?;
        let url: SqsUrl = format!("sqs+http://{}/{name}", server.address()).parse()?;
        url.create_queue(runtime).await?;
        Ok(Self { client, url, address: format!("http://{}/000000000000/{name}", server.address()) })
    }

    async fn call(&self, operation: &'static str, mut body: Value) -> anyhow::Result<Value> {
        body["QueueUrl"] = json!(self.address);
        let limits = AnswerLimits { head: Duration::from_secs(30), body: Duration::from_secs(30) };
        let call = AwsCall { operation, body: body.to_string().into(), limits, time: None };
        let answer = self.client.call(&call).await.map_err(|failure| anyhow!("{operation}: {failure:?}"))?;
        Ok(serde_json::from_slice(&answer.body)?)
    }

    async fn fill(&self) -> anyhow::Result<()> {
        let payload = str::from_utf8(PAYLOAD)?;
        let entry = |number: usize| {
            let key = Uuid::from_bytes(random()?).to_string();
            let attributes = json!({ "Idempotency-Key": { "DataType": "String", "StringValue": key } });
            let id = number.to_string();
            anyhow::Ok(json!({ "Id": id, "MessageBody": payload, "MessageAttributes": attributes }))
        };
        let entries = (0..MESSAGES).map(entry).collect::<anyhow::Result<Vec<_>>>()?;
        let calls: Vec<Value> = entries.chunks(CALL).map(|entries| json!({ "Entries": entries })).collect();
        for calls in calls.chunks(CALLS) {
            for answer in try_join_all(calls.iter().map(|call| self.call("SendMessageBatch", call.clone()))).await? {
                ensure!(answer["Failed"].as_array().is_none_or(Vec::is_empty), "messages are refused: {answer}");
            }
        }
        Ok(())
    }

    /// Processes all messages by calls alone.
    async fn read(&self, mut body: LoopBody) -> anyhow::Result<BatchResult> {
        let before = own_seconds_of_cpu()?;
        let (mut begun, mut left) = (None, MESSAGES);
        while left > 0 {
            let (mut messages, mut receipts) = (Vec::new(), Vec::new());
            for received in self.batch(left, &mut begun).await? {
                messages.push(received.message);
                receipts.push(received.receipt);
            }
            body.handle(&messages).await?;
            self.delete(&receipts).await?;
            left -= messages.len();
        }
        let elapsed = begun.context("no message was processed")?.elapsed();
        let cpu = (own_seconds_of_cpu()? - before) / MESSAGES as f64;
        let note = format!("{:.0} us of CPU each in this process", cpu * 1e6);
        Ok(BatchResult { rate: MESSAGES as f64 / elapsed.as_secs_f64(), note })
    }

    /// The messages of one transaction.
    async fn batch(&self, left: usize, begun: &mut Option<Instant>) -> anyhow::Result<Vec<BareMessage>> {
        let mut received = Vec::new();
        while received.len() < left.min(BATCH - RECEIVERS * CALL) {
            let asked = json!({ "MaxNumberOfMessages": CALL, "MessageAttributeNames": ["All"], "WaitTimeSeconds": 1 });
            for answer in join_all((0..RECEIVERS).map(|_| self.call("ReceiveMessage", asked.clone()))).await {
                begun.get_or_insert_with(Instant::now);
                for message in answer?["Messages"].as_array().into_iter().flatten() {
                    received.push(read(message)?);
                }
            }
        }
        Ok(received)
    }

    async fn delete(&self, receipts: &[Value]) -> anyhow::Result<()> {
        let entry = |(number, receipt): (usize, &Value)| json!({ "Id": number.to_string(), "ReceiptHandle": receipt });
        let calls = receipts.chunks(CALL).map(|receipts| {
            let entries: Vec<Value> = receipts.iter().enumerate().map(entry).collect();
            self.call("DeleteMessageBatch", json!({ "Entries": entries }))
        });
        try_join_all(calls).await.map(drop)
    }
}

fn read(message: &Value) -> anyhow::Result<BareMessage> {
    let key = message["MessageAttributes"]["Idempotency-Key"]["StringValue"].as_str();
    let key = Uuid::try_parse(key.context("a message has no key")?)?;
    let payload = message["Body"].as_str().context("a message has no body")?.into();
    Ok(BareMessage { message: ReceivedMessage { key, payload }, receipt: message["ReceiptHandle"].clone() })
}
