//! A service in any language as the target of messages: one POST for each message, with a record of layer 1.

mod cause;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use hapax::broker::{DeadCause, DeadReason, Job, Process, Verdict};
use hapax::gate::{Answer, Attempt, Failure, Provenance, Reason, Refused, RunResult};
use hapax::http::{JudgeOutcome, Outcome, StatusOutcomes};
use hapax::ledger::rules::backoff;
use hapax::{BoxError, Call, ErrorKind, Gate, OnLapse, OperationId};
use http::header::RETRY_AFTER;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::Instrument;

use crate::serve::otlp::{inject, spans};
use crate::upstream::SendError;
use crate::upstream::body::UpstreamBody;
use crate::upstream::client::UpstreamClient;
use crate::worker::request::{NoStream, message_fields, request};
use cause::dead_cause;

/// How long to wait while the service or the store is down.
const WHILE_DOWN: Duration = Duration::from_secs(1);
/// How long to wait for a share of the running attempts.
const WHILE_FULL: Duration = Duration::from_millis(100);
/// If the service has refused so many messages since it applied one, it is taken to refuse everything. Nothing is given
/// up then, and the worker pauses.
const REFUSES_ALL: usize = 20;
/// From this attempt on, a refused message waits alone, and the worker does not pause for it. Otherwise the refused
/// messages would take all slots again after each pause, and those behind them could not show that the service works.
const WAITS_ALONE: u32 = 3;
/// The longest pause of the whole worker.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest `Retry-After` that counts. The record of a refused message lives longer, so that its attempts count on.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// So many refusals of one message, in a time in which the service did not refuse everything, show that it is the fault
/// of the message. Without them nothing is given up: the attempts in its record may come from an outage.
const OWN_REFUSALS: u32 = 3;
/// The refusals of so many messages are remembered.
const REMEMBERED: usize = 10_000;
/// How much of a response is read, so that its connection can be used again.
const READ_BODY: usize = 64 << 10;

/// Processes messages by a service behind HTTP. A record keeps a message from running twice while another copy of it
/// runs, and after its outcome is known; unlike a ledger it cannot commit with the effect.
#[derive(Clone)]
pub(crate) struct HttpTarget(Arc<Service>);

/// What is needed to call the service.
pub(crate) struct Service {
    pub(crate) gate: Gate,
    pub(crate) client: UpstreamClient<NoStream>,
    /// The host and port, to find out whether the service is there again.
    pub(crate) address: String,
    pub(crate) path: PathAndQuery,
    pub(crate) timeout: Duration,
    pub(crate) outcomes: StatusOutcomes,
    /// Further headers of a message that the service gets.
    pub(crate) forwarded: Vec<HeaderName>,
    pub(crate) max_attempts: u32,
    pub(crate) health: ServiceHealth,
}

/// What the last attempts have shown about the service.
#[derive(Debug, Default)]
pub(crate) struct ServiceHealth {
    is_down: AtomicBool,
    refusals: Mutex<Refusals>,
}

#[derive(Debug, Default)]
struct Refusals {
    /// The operations that were refused since one was applied.
    since_applied: HashSet<OperationId>,
    /// How often each operation was refused while others were not.
    own: HashMap<OperationId, u32>,
}

impl fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTarget").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl HttpTarget {
    pub(crate) fn new(service: Service) -> Self {
        Self(Arc::new(service))
    }

    /// Runs jobs of one ordering key one after the other, until one has no end.
    async fn run_in_order(&self, jobs: Vec<(usize, Job)>) -> Vec<(usize, Verdict)> {
        let mut verdicts = Vec::with_capacity(jobs.len());
        let mut is_blocked = false;
        for (place, job) in jobs {
            let verdict = if is_blocked { Verdict::Busy { after: Duration::ZERO } } else { self.run_traced(job).await };
            is_blocked |= !matches!(verdict, Verdict::Done { .. } | Verdict::DeadLetter { .. });
            verdicts.push((place, verdict));
        }
        verdicts
    }

    async fn run_traced(&self, job: Job) -> Verdict {
        let span = spans::message(&job);
        let verdict = self.run(job).instrument(span.clone()).await;
        spans::end_message(&span, &verdict);
        verdict
    }

    async fn run(&self, job: Job) -> Verdict {
        if self.0.is_still_down().await {
            return Verdict::Pause { after: WHILE_DOWN };
        }
        let fields = match message_fields(&job.message.headers, &self.0.forwarded) {
            Ok(fields) => fields,
            // No attempt begins, so it is known that the service got nothing.
            Err(cause) => return Verdict::dead(DeadReason::Rejected, 0).because(DeadCause::new(&cause)),
        };
        let call = Call::new(job.record_key).fingerprint(job.call.newest_fingerprint());
        let service = Arc::clone(&self.0);
        let run = self.0.gate.run_with_local(call, async move |attempt: Attempt| {
            let told = service.send(&job, fields, &attempt).await;
            (told.clone().into_result(attempt.number()), (told, attempt.number()))
        });
        let (ran, told) = run.await;
        self.0.verdict(ran, told)
    }
}

#[async_trait]
impl Process for HttpTarget {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let count = jobs.len();
        let mut unordered = Vec::new();
        let mut ordered: BTreeMap<Bytes, Vec<(usize, Job)>> = BTreeMap::new();
        for (place, job) in jobs.into_iter().enumerate() {
            match job.message.ordering_key.clone() {
                Some(key) => ordered.entry(key).or_default().push((place, job)),
                None => unordered.push(vec![(place, job)]),
            }
        }
        let chains = unordered.into_iter().chain(ordered.into_values()).map(|jobs| self.run_in_order(jobs));
        let mut verdicts = vec![Verdict::Busy { after: Duration::ZERO }; count];
        for (place, verdict) in join_all(chains).await.into_iter().flatten() {
            verdicts[place] = verdict;
        }
        verdicts
    }
}

impl Service {
    /// Sends one attempt, and judges the response by its status.
    async fn send(&self, job: &Job, fields: HeaderMap, attempt: &Attempt) -> Told {
        let mut request = request(job, fields, attempt, &self.path);
        let operation = job.call.operation();
        let span = spans::upstream(request.method());
        inject(&span, request.headers_mut());
        let sent = timeout(self.timeout, self.client.send(request)).await;
        spans::end_upstream(&span, sent.as_ref().ok().and_then(|sent| Some(sent.as_ref().ok()?.status())));
        drop(span);
        let told = match sent {
            Ok(Ok(response)) => self.judge(response, operation, attempt).await,
            Ok(Err(SendError::Unsent(error))) => {
                tracing::warn!(%error, "the target is unreachable; the worker pauses");
                Told::Unreachable
            }
            Ok(Err(SendError::Cut(error))) => {
                tracing::warn!(%operation, %error, "the target broke off; outcome unknown");
                Told::unknown(format!("the connection to the target broke after the request was sent: {error}"))
            }
            Err(_) => {
                let timeout_s = self.timeout.as_secs();
                tracing::warn!(%operation, timeout_s, "the target timed out; outcome unknown");
                Told::unknown(format!("the target did not answer within {timeout_s} s"))
            }
        };
        match &told {
            Told::Applied | Told::Final(_) => self.health.note_applied(operation),
            Told::GivenUp(_) => self.health.forget(operation),
            Told::Unreachable => self.health.is_down.store(true, Ordering::Relaxed),
            Told::NotApplied { .. } | Told::Unknown(_) => {}
        }
        told
    }

    async fn judge(
        &self,
        response: Response<UpstreamBody<NoStream>>,
        operation: OperationId,
        attempt: &Attempt,
    ) -> Told {
        let (parts, body) = response.into_parts();
        let outcome = self.outcomes.outcome(&parts);
        // The status has decided. The rest is read only so that the connection can be used again.
        let _ = timeout(WHILE_DOWN, http_body_util::Limited::new(body, READ_BODY).collect()).await;
        match outcome {
            Outcome::Applied => Told::Applied,
            Outcome::Final => Told::Final(parts.status),
            Outcome::Unknown => Told::unknown(format!("the target answered {}", parts.status)),
            Outcome::NotApplied | Outcome::Denied => {
                let number = u32::from(attempt.number());
                let own = self.health.note_refused(operation, parts.status);
                let is_last = number >= self.max_attempts && own >= OWN_REFUSALS.min(self.max_attempts);
                let after = backoff(number).max(retry_after(&parts.headers));
                if is_last { Told::GivenUp(parts.status) } else { Told::NotApplied { after } }
            }
        }
    }

    /// Whether the service could not be reached, and cannot be reached now. Costs no attempt.
    async fn is_still_down(&self) -> bool {
        if !self.health.is_down.load(Ordering::Relaxed) {
            return false;
        }
        let is_there = matches!(timeout(WHILE_DOWN, TcpStream::connect(&self.address)).await, Ok(Ok(_)));
        self.health.is_down.store(!is_there, Ordering::Relaxed);
        !is_there
    }

    /// What the worker does with the message.
    fn verdict(
        &self,
        ran: Result<RunResult<TargetAnswer>, Refused<TargetAnswer>>,
        told: Option<(Told, u16)>,
    ) -> Verdict {
        let cause = dead_cause(&ran, told.as_ref().map(|(told, _)| told));
        let dead = |reason, attempts| Verdict::dead(reason, attempts).because(cause.clone());
        let made = told.as_ref().map_or(0, |(_, number)| u32::from(*number));
        let number = made.max(1);
        let is_retried = matches!(self.gate.policy().on_lapse, OnLapse::Retry(_)) && number < self.max_attempts;
        match ran {
            Ok(result) if result.answer.is_applied => {
                Verdict::Done { caught: result.provenance == Provenance::Replayed }
            }
            Ok(_) => dead(DeadReason::Rejected, made),
            Err(refused) => match (refused.reason, told.map(|(told, _)| told)) {
                (Reason::Busy { retry_after }, _) => Verdict::Busy { after: retry_after },
                (Reason::Overloaded, _) => Verdict::Busy { after: WHILE_FULL },
                (Reason::Mismatch, _) => dead(DeadReason::KeyReused, 0),
                (Reason::Indeterminate { .. }, _) => dead(DeadReason::OutcomeUnknown, 0),
                (Reason::Dead, _) => dead(DeadReason::AttemptsExhausted, self.max_attempts),
                (Reason::Store(ErrorKind::Damaged), _) => dead(DeadReason::RecordDamaged, 0),
                (Reason::Store(_), _) => Verdict::Pause { after: WHILE_DOWN },
                // The effect is there, and this process knows it: only a copy would not.
                (Reason::Unrecorded | Reason::Unknown { .. }, Some(Told::Applied)) => Verdict::Done { caught: false },
                (Reason::Unrecorded | Reason::Unknown { .. }, Some(Told::Final(_))) => dead(DeadReason::Rejected, made),
                (Reason::NotApplied { .. }, Some(Told::GivenUp(_))) => {
                    dead(DeadReason::AttemptsExhausted, self.max_attempts)
                }
                (Reason::NotApplied { .. }, Some(Told::Unreachable)) => Verdict::Pause { after: WHILE_DOWN },
                (Reason::NotApplied { .. }, Some(Told::NotApplied { after }))
                    if number < WAITS_ALONE && self.health.refuses_all() =>
                {
                    Verdict::Pause { after: after.min(LONGEST_PAUSE) }
                }
                (Reason::NotApplied { .. }, Some(Told::NotApplied { after })) => Verdict::Retry { after },
                (Reason::NotApplied { .. }, _) => Verdict::Retry { after: WHILE_DOWN },
                (Reason::Unknown { .. } | Reason::Unrecorded, _) if is_retried => {
                    Verdict::Retry { after: backoff(number).max(WHILE_DOWN) }
                }
                (Reason::Unknown { .. } | Reason::Unrecorded, _) => dead(DeadReason::OutcomeUnknown, number),
            },
        }
    }
}

impl ServiceHealth {
    fn note_applied(&self, operation: OperationId) {
        let mut refusals = self.refusals.lock();
        refusals.since_applied.clear();
        refusals.own.remove(&operation);
    }

    /// Counts from 0 again for this operation, for a redrive of its dead letter.
    fn forget(&self, operation: OperationId) {
        self.refusals.lock().own.remove(&operation);
    }

    /// Returns how often this operation was refused while others were not.
    fn note_refused(&self, operation: OperationId, status: StatusCode) -> u32 {
        let mut refusals = self.refusals.lock();
        let is_new = refusals.since_applied.insert(operation);
        let refused = refusals.since_applied.len();
        if refused >= REFUSES_ALL {
            // After 20, 40, 80 messages, and so on.
            if is_new && refused.is_multiple_of(REFUSES_ALL) && (refused / REFUSES_ALL).is_power_of_two() {
                tracing::warn!("the target has refused {refused} messages in a row, the last one with {status}");
            }
            return 0;
        }
        if refusals.own.len() >= REMEMBERED {
            refusals.own.clear();
        }
        let own = refusals.own.entry(operation).or_default();
        *own += 1;
        *own
    }

    /// Whether the service has refused so many messages that it is no message's fault.
    fn refuses_all(&self) -> bool {
        self.refusals.lock().since_applied.len() >= REFUSES_ALL
    }
}

/// What an attempt has learned.
#[derive(Clone, Debug)]
enum Told {
    Applied,
    Final(StatusCode),
    NotApplied {
        after: Duration,
    },
    GivenUp(StatusCode),
    Unreachable,
    /// Why the outcome is unknown.
    Unknown(Option<DeadCause>),
}

impl Told {
    fn unknown(why: String) -> Self {
        Self::Unknown(DeadCause::new(&why))
    }

    fn into_result(self, attempt: u16) -> Result<TargetAnswer, Failure<TargetAnswer>> {
        match self {
            Self::Applied => Ok(TargetAnswer { is_applied: true }),
            Self::Final(status) => {
                tracing::info!(%status, "the target rejected a message for good");
                Err(Failure::finally(TargetAnswer { is_applied: false }))
            }
            Self::NotApplied { .. } => Err(Failure::not_applied("the target did not apply it")),
            Self::GivenUp(status) => {
                tracing::warn!(attempt, %status, "the target did not apply a message in its last attempt");
                Err(Failure::given_up("the target did not apply it in the last attempt"))
            }
            Self::Unreachable => Err(Failure::not_applied("the target is unreachable")),
            Self::Unknown(_) => Err(Failure::unknown("the outcome in the target is unknown")),
        }
    }
}

/// What a record keeps of a message that was applied.
pub(crate) const PROCESSED: Bytes = Bytes::from_static(b"applied");

/// What a record keeps of the response: whether the service applied the message or rejected it for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TargetAnswer {
    is_applied: bool,
}

impl Answer for TargetAnswer {
    fn encode(&self) -> Bytes {
        if self.is_applied { PROCESSED } else { Bytes::from_static(b"rejected") }
    }

    fn decode(stored: Bytes) -> Result<Self, BoxError> {
        match &stored[..] {
            applied if applied == PROCESSED => Ok(Self { is_applied: true }),
            b"rejected" => Ok(Self { is_applied: false }),
            _ => Err("neither `applied` nor `rejected`".into()),
        }
    }
}

/// The time in `Retry-After`, if it is a number of seconds.
fn retry_after(fields: &HeaderMap) -> Duration {
    let seconds = fields.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs).min(LONGEST_RETRY_AFTER)
}
