//! Queues of a stand-in for SQS, asked without the code under test, but for its client of AWS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::runtime::{Runtime, Tokio};
use hapax_net::aws::{AwsCall, AwsClient, AwsCredentials, AwsEndpoint, AwsFailure};
use hapax_net::http::{AnswerLimits, HttpClient, HttpSettings};
use hapax_testkit::servers::ElasticMqServer;
use serde_json::{Value, json};

/// An answer that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A queue.
#[derive(Clone)]
pub(crate) struct TestQueue {
    client: AwsClient,
    url: String,
    pub(crate) name: String,
}

impl TestQueue {
    /// A queue of this name, which need not exist.
    pub(crate) fn named(server: &ElasticMqServer, name: &str) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let settings = HttpSettings { max_body: 64 << 20, ..HttpSettings::new(Arc::clone(&runtime)) };
        let http = HttpClient::new(settings).unwrap();
        let uri = format!("http://{}/", server.address()).parse().unwrap();
        let (region, credentials) = ("elasticmq".to_owned(), AwsCredentials::of_a_stand_in());
        let endpoint = AwsEndpoint { uri, region, service: "sqs", target: "AmazonSQS", credentials };
        let url = format!("http://{}/000000000000/{name}", server.address());
        Self { client: AwsClient::new(endpoint, http, runtime).unwrap(), url, name: name.into() }
    }

    pub(crate) async fn create(&self) {
        let fifo = json!({ "FifoQueue": "true" });
        let attributes = if self.is_fifo() { fifo } else { json!({}) };
        self.call("CreateQueue", json!({ "QueueName": self.name, "Attributes": attributes })).await;
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.name.ends_with(".fifo")
    }

    /// Makes a call until the service answers it.
    pub(crate) async fn call(&self, operation: &'static str, mut body: Value) -> Value {
        if operation != "CreateQueue" {
            body["QueueUrl"] = json!(self.url);
        }
        let limits = AnswerLimits { head: Duration::from_secs(10), body: Duration::from_secs(10) };
        let call = AwsCall { operation, body: body.to_string().into(), limits, time: None };
        let begun = Instant::now();
        loop {
            match self.client.call(&call).await {
                Ok(answer) => return serde_json::from_slice(&answer.body).unwrap_or_default(),
                Err(AwsFailure::Refused(refusal)) => panic!("{operation}: {refusal}"),
                Err(failure) => assert!(begun.elapsed() < DEADLINE, "{operation}: {failure:?}"),
            }
            hapax_testkit::pause().await;
        }
    }
}
