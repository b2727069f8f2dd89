//! The queues that are known, and what they have sent lately.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::runtime::{BoxFuture, Runtime};
use parking_lot::Mutex;

use super::message;
use crate::batch::{BatchLimits, Batcher};
use crate::sqs::queue::{BatchAnswer, Called, MAX_BYTES, MAX_ENTRIES, Queue, SentMessage, SqsApi};
use crate::sqs::url::is_fifo;

/// The pause between two looks at the limit of a queue.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// The ids of messages that are remembered, to recognize copies.
const REMEMBERED: usize = 16_384;

/// The queues that exist. One that is missing is asked for again each time.
pub(super) struct KnownQueues {
    api: SqsApi,
    timeout: Duration,
    known: Mutex<BTreeMap<String, Arc<KnownQueue>>>,
    sent: Mutex<RecentIds>,
    runtime: Arc<dyn Runtime>,
}

pub(super) struct KnownQueue {
    pub(super) sends: Batcher<SentMessage, Called<String>>,
    queue: Queue,
    /// The largest message that it takes.
    max_bytes: AtomicUsize,
    /// When that is read again. Locked while it is read.
    again_at: tokio::sync::Mutex<Duration>,
}

#[derive(Default)]
struct RecentIds {
    ids: BTreeSet<String>,
    order: VecDeque<String>,
}

impl KnownQueues {
    pub(super) fn new(api: SqsApi, timeout: Duration, runtime: Arc<dyn Runtime>) -> Self {
        Self { api, timeout, known: Mutex::default(), sent: Mutex::default(), runtime }
    }

    /// A queue, which is asked for if it is not known.
    pub(super) async fn find(&self, name: &str) -> Called<Arc<KnownQueue>> {
        if let Some(queue) = self.known.lock().get(name) {
            return Ok(Arc::clone(queue));
        }
        let queue = self.api.queue(name).await?;
        // Without the right to look at it, it has the limit of the service. A missing one shows here, if its URL was
        // not asked for.
        let max_bytes = match queue.attributes().await {
            Ok(attributes) => attributes.max_bytes(),
            Err(failure) if failure.is_denied() => MAX_BYTES,
            Err(failure) => return Err(failure),
        };
        let limits = BatchLimits { entries: MAX_ENTRIES, bytes: MAX_BYTES };
        let sends = Batcher::start(&self.runtime, limits, message::size, Box::new(self.sending(queue.clone())));
        let (max_bytes, again_at) = (AtomicUsize::new(max_bytes), tokio::sync::Mutex::default());
        let known = Arc::new(KnownQueue { sends, queue, max_bytes, again_at });
        // Another call may have found it meanwhile.
        Ok(Arc::clone(self.known.lock().entry(name.to_owned()).or_insert(known)))
    }

    fn sending(
        &self,
        queue: Queue,
    ) -> impl Fn(Vec<SentMessage>) -> BoxFuture<'static, Vec<Called<String>>> + Send + Sync + 'static {
        let limit = self.timeout;
        move |messages| {
            let queue = queue.clone();
            Box::pin(async move { send_all(&messages, |messages| Box::pin(queue.send(messages, limit))).await })
        }
    }

    /// Whether the message with this id was sent before. Remembers it.
    pub(super) fn is_repeated(&self, id: &str) -> bool {
        self.sent.lock().note(id)
    }

    /// Reads the limit of a queue again, once in a while: its operator may have raised it.
    pub(super) async fn read_limit(&self, queue: &KnownQueue) {
        // Those that come meanwhile wait for the answer.
        let mut again_at = queue.again_at.lock().await;
        if self.runtime.boottime_now() < *again_at {
            return;
        }
        // Without an answer, the present one counts.
        if let Ok(attributes) = queue.queue.attributes().await {
            queue.max_bytes.store(attributes.max_bytes(), Ordering::Relaxed);
        }
        *again_at = self.runtime.boottime_now() + LOOK_PAUSE;
    }

    /// Reads the limits of the known queues again that do not take every message.
    pub(super) async fn read_small_limits(&self) {
        let known: Vec<Arc<KnownQueue>> = self.known.lock().values().cloned().collect();
        for queue in known.iter().filter(|queue| queue.max_bytes() < MAX_BYTES) {
            self.read_limit(queue).await;
        }
    }

    /// The smallest limit of the known queues, in bytes.
    pub(super) fn smallest_limit(&self) -> usize {
        self.known.lock().values().map(|queue| queue.max_bytes()).min().unwrap_or(MAX_BYTES)
    }

    /// Whether all known queues are FIFO queues; `otherwise` if none is known.
    pub(super) fn are_fifo(&self, otherwise: bool) -> bool {
        let known = self.known.lock();
        if known.is_empty() { otherwise } else { known.keys().all(|name| is_fifo(name)) }
    }
}

impl KnownQueue {
    /// The largest message that it takes.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }
}

/// Sends a batch. If the service refuses it because of what it has, it sends each message alone: one of them may be
/// wrong, or only all of them together too long.
async fn send_all<'m>(
    messages: &'m [SentMessage],
    send: impl Fn(&'m [SentMessage]) -> BoxFuture<'m, Called<BatchAnswer>> + Send + Sync,
) -> Vec<Called<String>> {
    let failure = match send(messages).await {
        Ok(answer) => return answer.results(messages.len()),
        Err(failure) => failure,
    };
    if messages.len() == 1 || !failure.is_about_content() {
        return vec![Err(failure); messages.len()];
    }
    let mut results = Vec::new();
    // One after the other, so that messages of one group keep their order.
    for message in messages.chunks(1) {
        results.push(send(message).await.and_then(|answer| answer.results(1).swap_remove(0)));
    }
    results
}

impl RecentIds {
    fn note(&mut self, id: &str) -> bool {
        if !self.ids.insert(id.to_owned()) {
            return true;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::outbox::Published;

    use super::*;
    use crate::sqs::answers::CallFailure;

    /// Sends three messages to a service that takes batches of so many, and refuses longer ones with this code. Returns
    /// the sizes of the batches.
    async fn send_three(limit: usize, code: &str) -> (Vec<usize>, Vec<Called<String>>) {
        let sent = Mutex::new(Vec::new());
        let message = SentMessage {
            message_body: "x".into(),
            message_attributes: BTreeMap::new(),
            message_group_id: None,
            message_deduplication_id: None,
        };
        let messages = vec![message; 3];
        let results = send_all(&messages, |messages| {
            sent.lock().push(messages.len());
            let answer = match messages.len() <= limit {
                true => Ok(serde_json::from_str(r#"{"Successful":[{"Id":"0","MessageId":"m"}]}"#).unwrap()),
                false => Err(CallFailure::of_code(code, "long")),
            };
            Box::pin(async { answer })
        });
        let results = results.await;
        (sent.into_inner(), results)
    }

    #[tokio::test]
    async fn the_messages_of_a_batch_that_is_refused_are_sent_alone() {
        const LONG: &str = "AWS.SimpleQueueService.BatchRequestTooLong";
        for code in [LONG, "com.amazon.coral.service#InvalidParameterValueException"] {
            let (sent, results) = send_three(1, code).await;
            assert_eq!(sent, [3, 1, 1, 1]);
            assert!(results.iter().all(|result| result.as_ref().is_ok_and(|id| id == "m")), "{results:?}");
            let (sent, results) = send_three(0, code).await;
            assert_eq!((sent.len(), results.len()), (4, 3));
            for result in results {
                assert!(matches!(result.unwrap_err().published("q"), Published::Refused(_)));
            }
        }
        let (sent, results) = send_three(3, LONG).await;
        assert_eq!((sent.len(), results[0].is_ok(), results[1].is_ok()), (1, true, false));
        assert_eq!(send_three(1, "RequestThrottled").await.0, [3]);
    }

    #[test]
    fn an_id_is_recognized_until_many_others_have_followed() {
        let mut recent = RecentIds::default();
        assert!(!recent.note("a") && recent.note("a"));
        for number in 0..REMEMBERED {
            assert!(!recent.note(&number.to_string()));
        }
        assert!(!recent.note("a"), "it is forgotten");
        assert!(recent.order.len() <= REMEMBERED && recent.ids.len() <= REMEMBERED);
    }
}
