use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hapax::runtime::{Runtime, Tokio};
use hapax_net::aws::{AwsCall, AwsClient, AwsCredentials, AwsEndpoint, AwsFailure};
use hapax_net::http::{AnswerLimits, HttpClient, HttpSettings};
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::ElasticMqServer;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::order::WorkerOrder;

const QUEUE: &str = "transfers";
const DEADLINE: Duration = Duration::from_secs(60);

/// The most messages of one call.
const BATCH: usize = 10;

/// The lease of a message, in seconds: those of a killed worker come again after it.
const VISIBILITY: u32 = 5;

/// The FIFO queue, from the side of its producer. Each payer is a message group.
pub(crate) struct TransferFifo {
    client: AwsClient,
    /// `http://HOST:PORT`.
    server: String,
    broker: BrokerUrl,
    /// Messages that are to be sent with the next call.
    waiting: Vec<Value>,
    /// Tells copies of a transfer apart. Otherwise the queue would leave them out.
    sent: u64,
}

impl TransferFifo {
    pub(crate) async fn create(server: &ElasticMqServer) -> Result<Self> {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime)))?;
        let uri = format!("http://{}/", server.address()).parse()?;
        let (region, credentials) = ("elasticmq".to_owned(), AwsCredentials::of_a_stand_in());
        let endpoint = AwsEndpoint { uri, region, service: "sqs", target: "AmazonSQS", credentials };
        let client = AwsClient::new(endpoint, http, runtime)?;
        let broker: BrokerUrl = format!("sqs+http://{}", server.address()).parse()?;
        broker.create(&TopicPlan::new("", QUEUE)).await?;
        let server = format!("http://{}", server.address());
        Ok(Self { client, server, broker, waiting: Vec::new(), sent: 0 })
    }

    /// The URL of a worker.
    pub(crate) fn url(&self) -> String {
        format!("sqs+{}/{QUEUE}.fifo?visibility={VISIBILITY}&wait=1", self.server)
    }

    /// Sends a transfer, again until the queue has it.
    pub(crate) async fn send(&mut self, order: &WorkerOrder) -> Result<()> {
        self.sent += 1;
        self.waiting.push(json!({
            "Id": self.sent.to_string(),
            "MessageBody": order.payload(),
            "MessageGroupId": order.payer,
            "MessageDeduplicationId": self.sent.to_string(),
            "MessageAttributes": { "Idempotency-Key": { "DataType": "String", "StringValue": order.key } },
        }));
        if self.waiting.len() == BATCH { self.flush().await } else { Ok(()) }
    }

    /// Waits until the queue has everything.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let entries = json!({ "Entries": self.waiting });
        let answer = self.until_answered("SendMessageBatch", entries).await?;
        // A later message of the group may be in the queue already.
        ensure!(answer["Failed"].as_array().is_none_or(Vec::is_empty), "messages are refused: {answer}");
        self.waiting.clear();
        Ok(())
    }

    /// The number of messages in the queue, with those that a worker has. An error while the server is down.
    pub(crate) async fn left(&self) -> Result<u32> {
        let counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
        let answer = self.call("GetQueueAttributes", json!({ "AttributeNames": counts })).await??;
        let count = |name: &str| answer["Attributes"][name].as_str()?.parse::<u32>().ok();
        counts.into_iter().map(count).sum::<Option<u32>>().with_context(|| answer.to_string())
    }

    /// Waits until the server has the queue.
    pub(crate) async fn wait_until_served(&self) -> Result<()> {
        self.until_answered("GetQueueAttributes", json!({})).await.map(drop)
    }

    /// Deletes the queue, and creates it again. Nothing may be on the way.
    pub(crate) async fn recreate(&self) -> Result<()> {
        self.broker.remove(&TopicPlan::new("", QUEUE).name()).await?;
        self.broker.create(&TopicPlan::new("", QUEUE)).await
    }

    /// Makes a call until the server answers it. A message that is sent again has its number again.
    async fn until_answered(&self, operation: &'static str, body: Value) -> Result<Value> {
        let begun = Instant::now();
        loop {
            match self.call(operation, body.clone()).await? {
                Ok(answer) => return Ok(answer),
                Err(unanswered) => ensure!(begun.elapsed() < DEADLINE, "{operation}: {unanswered}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Makes a call once. The outer error is a refusal.
    async fn call(&self, operation: &'static str, mut body: Value) -> Result<Result<Value, Unanswered>> {
        body["QueueUrl"] = json!(format!("{}/000000000000/{QUEUE}.fifo", self.server));
        let limits = AnswerLimits { head: Duration::from_secs(5), body: Duration::from_secs(5) };
        match self.client.call(&AwsCall { operation, body: body.to_string().into(), limits, time: None }).await {
            Ok(answer) => Ok(Ok(serde_json::from_slice(&answer.body)?)),
            Err(AwsFailure::Refused(refusal)) => bail!("{operation}: {refusal}"),
            Err(failure @ (AwsFailure::NotSent(_) | AwsFailure::Unknown(_))) => Ok(Err(Unanswered(failure))),
        }
    }
}

/// Why a call has no answer.
#[derive(Debug)]
struct Unanswered(AwsFailure);

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Unanswered {}
