//! The calls of SQS.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Result;
use hapax_core::runtime::Runtime;
use hapax_net::aws::{AwsAnswer, AwsCall, AwsClient, AwsCredentials, AwsEndpoint, AwsFailure};
use hapax_net::http::{AnswerLimits, HttpClient, HttpSettings};
use hapax_net::tls::{self, ServerTrust, TlsFiles};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answers::CallFailure;
use super::url::{SqsPlace, is_fifo};
use crate::errors::invalid;

/// How long an answer may take until it begins, but for one that waits for messages.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long the answer to a settlement may take until it begins. Others about the same deliveries wait for it, so
/// several must fit into a lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// How long the rest of an answer may take.
const SHORT_BODY: Duration = Duration::from_secs(5);

/// How long messages may take. Ten of a mebibyte each do so over a slow line, and an answer that is cut off hides them.
const MESSAGES: Duration = Duration::from_secs(30);

/// The largest answer: ten messages of a mebibyte each, as JSON writes control characters.
const MAX_ANSWER: usize = 64 << 20;

/// The entries of a batch, at most.
pub(super) const MAX_ENTRIES: usize = 10;

/// The largest message, and the largest batch, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The result of a call.
pub(super) type Called<T> = Result<T, CallFailure>;

/// How long before the beginning of its answer the service may have taken a message, at most. A tenth of a short lease.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Messages, and since when their leases have run.
pub(super) type ReceivedMessages = (Vec<SqsMessage>, Duration);

/// The queues of an account in a region.
#[derive(Clone, Debug)]
pub(super) struct SqsApi {
    client: AwsClient,
    endpoint: Arc<str>,
    account: Option<Arc<str>>,
}

impl SqsApi {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Those of the TLS library.
    pub(super) async fn new(place: &SqsPlace, runtime: &Arc<dyn Runtime>) -> Result<Self> {
        let tls = place.is_aws().then(|| tls::client_config(ServerTrust::Named, &TlsFiles::default())).transpose()?;
        let settings =
            HttpSettings { tls, max_body: MAX_ANSWER, time_limit: PATIENCE, ..HttpSettings::new(Arc::clone(runtime)) };
        let http = HttpClient::new(settings)?;
        let region = place.region().to_owned();
        let credentials = match place.is_aws() {
            true => AwsCredentials::from_chain(&region, http.clone(), Arc::clone(runtime)),
            false => AwsCredentials::of_a_stand_in(),
        };
        let endpoint: Arc<str> = place.endpoint().into();
        let uri = format!("{endpoint}/").parse();
        let uri = uri.map_err(|error| invalid("the URL of the service is no URI").caused_by(error))?;
        let called = AwsEndpoint { uri, region, service: "sqs", target: "AmazonSQS", credentials };
        let client = AwsClient::new(called, http, Arc::clone(runtime))?;
        Ok(Self { client, endpoint, account: place.account().map(Arc::from) })
    }

    /// Finds a queue.
    pub(super) async fn queue(&self, name: &str) -> Called<Queue> {
        let url = match &self.account {
            // It has this form everywhere, and no right is needed to know it.
            Some(account) => format!("{}/{account}/{name}", self.endpoint),
            None => {
                let body = json!({ "QueueName": name });
                self.call::<FoundQueue>("GetQueueUrl", &body, PATIENCE).await?.queue_url
            }
        };
        Ok(Queue { api: self.clone(), url: url.into() })
    }

    /// Creates a queue. Does nothing if there is one like it.
    pub(super) async fn create(&self, name: &str) -> Called<()> {
        let attributes = if is_fifo(name) { json!({ "FifoQueue": "true" }) } else { json!({}) };
        let body = json!({ "QueueName": name, "Attributes": attributes });
        self.call::<FoundQueue>("CreateQueue", &body, PATIENCE).await.map(drop)
    }

    /// `limit` is until the answer begins.
    async fn call<A: DeserializeOwned>(&self, operation: &'static str, body: &Value, limit: Duration) -> Called<A> {
        let limits = AnswerLimits { head: limit, body: SHORT_BODY };
        Ok(self.timed_call(operation, body, limits).await?.0)
    }

    /// Returns when the answer began, too.
    async fn timed_call<A: DeserializeOwned>(
        &self,
        operation: &'static str,
        body: &Value,
        limits: AnswerLimits,
    ) -> Called<(A, Duration)> {
        let call = AwsCall { operation, body: Bytes::from(body.to_string()), limits, time: None };
        let AwsAnswer { body, arrival } = self.client.call(&call).await.map_err(CallFailure::of)?;
        // The body of an answer without a result may be empty.
        let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
        let unreadable = |error: serde_json::Error| CallFailure::of(AwsFailure::Unknown(error.into()));
        Ok((serde_json::from_slice(&body).map_err(unreadable)?, arrival.began))
    }
}

/// A queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    api: SqsApi,
    url: Arc<str>,
}

/// A request for messages.
#[derive(Debug)]
pub(super) struct ReceiveRequest {
    pub(super) count: usize,
    pub(super) wait: Duration,
    pub(super) visibility: Duration,
    /// Names the request at a FIFO queue, which gives the same messages again under the same name.
    pub(super) attempt: Option<String>,
}

impl Queue {
    /// Waits for messages.
    ///
    /// # Cancel safety
    /// If dropped, messages may be hidden for the whole visibility time. Let it end.
    pub(super) async fn receive(&self, request: &ReceiveRequest) -> Called<ReceivedMessages> {
        let mut body = json!({
            "QueueUrl": &*self.url,
            "MaxNumberOfMessages": request.count.clamp(1, MAX_ENTRIES),
            "WaitTimeSeconds": request.wait.as_secs(),
            "VisibilityTimeout": request.visibility.as_secs(),
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        if let (Some(attempt), Some(fields)) = (&request.attempt, body.as_object_mut()) {
            fields.insert("ReceiveRequestAttemptId".to_owned(), json!(attempt));
        }
        let limits = AnswerLimits { head: request.wait + Duration::from_secs(5), body: MESSAGES };
        let (answer, began) = self.api.timed_call::<ReceiveAnswer>("ReceiveMessage", &body, limits).await?;
        Ok((answer.messages, began.saturating_sub(ON_THE_WAY.min(request.visibility / 10))))
    }

    /// Deletes messages, given by their receipt handles.
    pub(super) async fn delete(&self, handles: &[&str]) -> Called<BatchAnswer> {
        let entries = handles.iter().enumerate();
        let entries = entries.map(|(id, handle)| json!({ "Id": id.to_string(), "ReceiptHandle": handle }));
        self.batch("DeleteMessageBatch", entries.collect()).await
    }

    /// Moves the ends of leases: to so many seconds from now.
    pub(super) async fn change_visibility(&self, ends: &[(&str, u64)]) -> Called<BatchAnswer> {
        let entries = ends.iter().enumerate().map(|(id, (handle, seconds))| {
            json!({ "Id": id.to_string(), "ReceiptHandle": handle, "VisibilityTimeout": seconds })
        });
        self.batch("ChangeMessageVisibilityBatch", entries.collect()).await
    }

    /// Sends messages.
    pub(super) async fn send(&self, messages: &[SentMessage], limit: Duration) -> Called<BatchAnswer> {
        let entries = messages.iter().enumerate().map(|(id, message)| {
            let mut entry = serde_json::to_value(message).unwrap_or_default();
            if let Some(fields) = entry.as_object_mut() {
                fields.insert("Id".to_owned(), json!(id.to_string()));
            }
            entry
        });
        let body = json!({ "QueueUrl": &*self.url, "Entries": entries.collect::<Vec<_>>() });
        self.api.call("SendMessageBatch", &body, limit).await
    }

    /// Sends settlements.
    async fn batch(&self, operation: &'static str, entries: Vec<Value>) -> Called<BatchAnswer> {
        let body = json!({ "QueueUrl": &*self.url, "Entries": entries });
        self.api.call(operation, &body, SETTLED_WITHIN).await
    }

    /// Deletes the queue with its messages.
    pub(super) async fn remove(&self) -> Called<()> {
        self.api.call::<Value>("DeleteQueue", &json!({ "QueueUrl": &*self.url }), PATIENCE).await.map(drop)
    }

    /// The attributes of the queue.
    pub(super) async fn attributes(&self) -> Called<QueueAttributes> {
        let body = json!({ "QueueUrl": &*self.url, "AttributeNames": ["All"] });
        self.api.call("GetQueueAttributes", &body, PATIENCE).await
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FoundQueue {
    queue_url: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveAnswer {
    #[serde(default)]
    messages: Vec<SqsMessage>,
}

/// A message that was received.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SqsMessage {
    pub(super) message_id: String,
    pub(super) receipt_handle: String,
    #[serde(default)]
    pub(super) body: String,
    #[serde(default)]
    pub(super) attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) message_attributes: BTreeMap<String, MessageAttribute>,
}

/// An attribute of a message: a text, or bytes in base64.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MessageAttribute {
    pub(super) data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) string_value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) binary_value: Option<String>,
}

/// A message that is sent.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SentMessage {
    pub(super) message_body: String,
    pub(super) message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_group_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_deduplication_id: Option<String>,
}

/// The outcomes of the entries of a batch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BatchAnswer {
    #[serde(default)]
    successful: Vec<SuccessfulEntry>,
    #[serde(default)]
    failed: Vec<FailedEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SuccessfulEntry {
    id: String,
    #[serde(default)]
    message_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FailedEntry {
    id: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl BatchAnswer {
    /// The outcome of each of so many entries: the id of its message, where it has one.
    pub(super) fn results(self, count: usize) -> Vec<Called<String>> {
        let mut results: Vec<Called<String>> = (0..count).map(|_| Err(CallFailure::without_result())).collect();
        let place = |id: &str| id.parse::<usize>().ok().filter(|place| *place < count);
        for entry in self.successful {
            if let Some(place) = place(&entry.id) {
                results[place] = Ok(entry.message_id);
            }
        }
        for entry in self.failed {
            if let Some(place) = place(&entry.id) {
                results[place] = Err(CallFailure::of_code(&entry.code, &entry.message));
            }
        }
        results
    }
}

/// The attributes of a queue.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct QueueAttributes {
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

impl QueueAttributes {
    /// The account that owns the queue. Empty if the service does not tell.
    pub(super) fn account(&self) -> &str {
        // arn:aws:sqs:REGION:ACCOUNT:QUEUE
        self.attributes.get("QueueArn").and_then(|arn| arn.split(':').nth(4)).unwrap_or_default()
    }

    /// The largest message that the queue takes, in bytes.
    pub(super) fn max_bytes(&self) -> usize {
        self.number("MaximumMessageSize").and_then(|size| usize::try_from(size).ok()).unwrap_or(MAX_BYTES)
    }

    /// How long a message is hidden after it was sent.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_secs(self.number("DelaySeconds").unwrap_or_default())
    }

    /// How long the queue keeps a message. None if the service does not tell.
    pub(super) fn retention(&self) -> Option<Duration> {
        self.number("MessageRetentionPeriod").map(Duration::from_secs)
    }

    /// After how many receipts the service moves a message to a dead-letter queue. None: never.
    pub(super) fn max_receives(&self) -> Option<u64> {
        let policy: Value = serde_json::from_str(self.attributes.get("RedrivePolicy")?).ok()?;
        let count = policy.get("maxReceiveCount")?;
        count.as_u64().or_else(|| count.as_str()?.parse().ok())
    }

    /// The messages that are not deleted.
    pub(super) fn messages(&self) -> u64 {
        let counts = ["", "NotVisible", "Delayed"].map(|kind| format!("ApproximateNumberOfMessages{kind}"));
        counts.iter().filter_map(|name| self.number(name)).sum()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.attributes.get(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_of_a_batch_has_a_result_of_its_own() {
        let answer = r#"{"Successful":[{"Id":"1","MessageId":"m"}],
            "Failed":[{"Id":"0","Code":"AWS.SimpleQueueService.InternalError","Message":"x","SenderFault":false}]}"#;
        let answer: BatchAnswer = serde_json::from_str(answer).unwrap();
        let results = answer.results(3);
        assert_eq!(results[1].as_deref().unwrap(), "m");
        assert!(results[0].is_err() && results[2].is_err(), "{results:?}");
    }

    #[test]
    fn the_attributes_of_a_queue_are_read() {
        let attributes = r#"{"Attributes":{"QueueArn":"arn:aws:sqs:eu-west-1:123456789012:orders",
            "MaximumMessageSize":"262144","DelaySeconds":"7","ApproximateNumberOfMessages":"3",
            "ApproximateNumberOfMessagesNotVisible":"2","ApproximateNumberOfMessagesDelayed":"1",
            "RedrivePolicy":"{\"deadLetterTargetArn\":\"x\",\"maxReceiveCount\":\"5\"}"}}"#;
        let read: QueueAttributes = serde_json::from_str(attributes).unwrap();
        assert_eq!((read.account(), read.max_bytes(), read.messages()), ("123456789012", 262_144, 6));
        assert_eq!((read.delay().as_secs(), read.max_receives()), (7, Some(5)));
        let none = QueueAttributes::default();
        assert_eq!((none.account(), none.max_bytes(), none.max_receives()), ("", MAX_BYTES, None));
    }
}
