//! Sends to queues of a stand-in for SQS.

use serde_json::{Map, Value, json};

use crate::elasticmq::TestQueue;

impl TestQueue {
    /// Sends a message with these attributes. At a FIFO queue `number` is its deduplication id.
    pub(crate) async fn send(&self, body: &str, attributes: &[(String, String)], group: &str, number: usize) {
        let attribute = |value: &String| json!({ "DataType": "String", "StringValue": value });
        let attributes: Map<String, Value> =
            attributes.iter().map(|(name, value)| (name.clone(), attribute(value))).collect();
        let mut entry = json!({ "MessageBody": body, "MessageAttributes": attributes });
        if self.is_fifo() {
            entry["MessageGroupId"] = json!(group);
            entry["MessageDeduplicationId"] = json!(number.to_string());
        }
        self.call("SendMessage", entry).await;
    }
}
