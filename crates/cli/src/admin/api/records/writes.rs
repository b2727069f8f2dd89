//! The decisions of operators about records: resolve, reopen, release, purge.

use hapax::Token;
use hapax::http::RecordedResponse;
use hapax::machine::{self, Change, Decision, Observed, Purged, Resolved, Verdict};
use hapax::store::{Protocol, RecordStatus};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AnswerForm, RecordDesk};
use crate::admin::api::calls::{ApiCall, RecordName};
use crate::admin::api::record::{RecordView, SeenRecord, refusal};
use crate::admin::api::values::{TextOrHex, text};
use crate::admin::api::{AdminApi, ApiError, within_deadline};
use crate::worker::target::PROCESSED;

/// A decision about a record, under the token that the operator saw.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteRecord<D> {
    #[serde(flatten)]
    pub(crate) seen: SeenToken,
    #[serde(flatten)]
    pub(crate) decision: D,
}

/// The record of a write.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SeenToken {
    #[serde(with = "text")]
    pub(crate) rk: RecordName,
    pub(crate) token: u64,
    /// Only decide, and write nothing.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

pub(crate) trait RecordDecision: Serialize + DeserializeOwned + Send + Sync + 'static {
    const NAME: &'static str;
    const PATH: &'static str;

    fn change(&self, desk: &RecordDesk) -> Result<RecordChange, ApiError>;

    /// The arguments without headers and bodies, for audit events.
    fn arguments(&self) -> Value {
        json!({})
    }
}

impl<D: RecordDecision> ApiCall for WriteRecord<D> {
    const PATH: &'static str = D::PATH;
    const WRITE: Option<&'static str> = Some(D::NAME);
    type Answer = RecordBeforeAndAfter;

    async fn carry_out(&self, api: &AdminApi) -> Result<RecordBeforeAndAfter, ApiError> {
        let desk = api.records()?;
        desk.write(&self.seen, &self.decision.change(desk)?).await
    }

    fn subject(&self) -> Value {
        let SeenToken { rk, token, .. } = self.seen;
        json!({ "record": rk.to_string(), "token": token, "arguments": self.decision.arguments() })
    }

    fn is_dry_run(&self) -> bool {
        self.seen.dry_run
    }
}

/// A record before and after a write.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordBeforeAndAfter {
    #[serde(with = "text")]
    pub(crate) rk: RecordName,
    pub(crate) before: Option<RecordView>,
    pub(crate) after: Option<RecordView>,
}

/// Writes down what happened to an operation whose outcome is unknown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResolveDecision {
    pub(crate) outcome: FoundOutcome,
    /// The response that every retry gets.
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<TextOrHex>,
}

/// The outcome of an operation, as an operator found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FoundOutcome {
    /// It happened, and has a response.
    Done,
    /// It happened, and it was the processing of a message, which has no response.
    Processed,
    /// It did not happen.
    NotDone,
}

impl ResolveDecision {
    fn response(&self) -> Result<Option<RecordedResponse>, ApiError> {
        let has_response = self.status.is_some() || !self.headers.is_empty() || self.body.is_some();
        if self.outcome != FoundOutcome::Done {
            let detail = "only the outcome \"done\" has a status, headers and a body";
            return if has_response { Err(ApiError::invalid(detail)) } else { Ok(None) };
        }
        let status = self.status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.filter(|status| status.as_u16() >= 200);
        let status = status.ok_or_else(|| ApiError::invalid("status: it must be from 200 to 999"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let field = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
            let (name, value) = field.ok_or_else(|| ApiError::invalid("headers: this is no header field"))?;
            headers.append(name, value);
        }
        let body = self.body.as_ref().map(TextOrHex::to_bytes).transpose().map_err(ApiError::invalid)?;
        Ok(Some(RecordedResponse { status, headers, body: body.unwrap_or_default().into() }))
    }
}

impl RecordDecision for ResolveDecision {
    const NAME: &'static str = "resolve";
    const PATH: &'static str = "records/{rk}/resolve";

    fn change(&self, desk: &RecordDesk) -> Result<RecordChange, ApiError> {
        let answer = match (self.outcome, self.response()?) {
            (FoundOutcome::NotDone, _) => return ReleaseDecision {}.change(desk),
            (FoundOutcome::Done | FoundOutcome::Processed, None) if desk.answers == AnswerForm::Responses => {
                let detail = "these records have responses: name the status, the headers and the body of the answer";
                return Err(ApiError::invalid(detail));
            }
            (FoundOutcome::Done | FoundOutcome::Processed, Some(_)) if desk.answers == AnswerForm::Messages => {
                let detail = "these records are of messages, which have no response: say `processed`";
                return Err(ApiError::invalid(detail));
            }
            (FoundOutcome::Done | FoundOutcome::Processed, None) => PROCESSED,
            (FoundOutcome::Done | FoundOutcome::Processed, Some(response)) => response.encode()?,
        };
        Ok(RecordChange::Resolve(Verdict::Done { answer, retention: desk.lifetimes.answer }))
    }

    fn arguments(&self) -> Value {
        match self.status {
            Some(status) => json!({ "outcome": self.outcome, "status": status }),
            None => json!({ "outcome": self.outcome }),
        }
    }
}

/// Lets a dead record be tried again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReopenDecision {}

impl RecordDecision for ReopenDecision {
    const NAME: &'static str = "reopen";
    const PATH: &'static str = "records/{rk}/reopen";

    fn change(&self, _: &RecordDesk) -> Result<RecordChange, ApiError> {
        Ok(RecordChange::Reopen)
    }
}

/// Frees a key whose operation did not happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReleaseDecision {}

impl RecordDecision for ReleaseDecision {
    const NAME: &'static str = "release";
    const PATH: &'static str = "records/{rk}/release";

    fn change(&self, desk: &RecordDesk) -> Result<RecordChange, ApiError> {
        Ok(RecordChange::Resolve(Verdict::NotDone { lifetime: desk.lifetimes.released }))
    }
}

/// Removes a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PurgeDecision {
    /// Also if the outcome is unknown.
    #[serde(default)]
    pub(crate) force: bool,
}

impl RecordDecision for PurgeDecision {
    const NAME: &'static str = "purge";
    const PATH: &'static str = "records/{rk}/purge";

    fn change(&self, _: &RecordDesk) -> Result<RecordChange, ApiError> {
        Ok(RecordChange::Purge { force: self.force })
    }

    fn arguments(&self) -> Value {
        json!({ "force": self.force })
    }
}

#[derive(Debug)]
pub(crate) enum RecordChange {
    Resolve(Verdict),
    Reopen,
    Purge { force: bool },
}

impl RecordDesk {
    /// Carries out what an operator wants. A dry run writes nothing, and has the same refusals.
    async fn write(&self, named: &SeenToken, change: &RecordChange) -> Result<RecordBeforeAndAfter, ApiError> {
        let rk = named.rk.0;
        let before = self.read(&rk).await?;
        let seen = SeenRecord::of_read(rk, &before);
        if seen.as_ref().is_some_and(SeenRecord::is_internal) {
            let detail = "the record belongs to Hapax itself: it ties a namespace to its secret, or events to a relay";
            return Err(ApiError::new(StatusCode::CONFLICT, "internal-record", detail));
        }
        let (is_done, after) = if named.dry_run {
            (self.is_allowed(named, change, &before), seen.clone())
        } else {
            let is_done = self.carry_out(named, change, &before).await?;
            (is_done, SeenRecord::of_read(rk, &self.read(&rk).await?))
        };
        if !is_done {
            return Err(refusal(named, after.as_ref(), change));
        }
        let view = |seen: Option<SeenRecord>| seen.map(|seen| seen.view());
        Ok(RecordBeforeAndAfter { rk: named.rk, before: view(seen), after: view(after) })
    }

    async fn carry_out(&self, named: &SeenToken, change: &RecordChange, before: &Observed) -> Result<bool, ApiError> {
        let (protocol, rk, token) = (Protocol::over(&*self.store.store), &named.rk.0, Token(named.token));
        let resolved = match change {
            RecordChange::Resolve(verdict) => {
                // A record whose lease has expired is held first, so that no retry can run meanwhile.
                if RecordStatus::of(before) == Some(RecordStatus::Lapsed)
                    && within_deadline(protocol.hold(rk, token, self.lifetimes.unknown)).await? == Resolved::Stale
                {
                    return Ok(false);
                }
                within_deadline(protocol.resolve(rk, token, verdict)).await?
            }
            RecordChange::Reopen => within_deadline(protocol.reopen(rk, token, self.lifetimes.released)).await?,
            RecordChange::Purge { force } => {
                let ask = machine::Purge { expected: token, forget_unknown: *force };
                let purged = within_deadline(protocol.purge(&*self.store.inspect, rk, &ask)).await?;
                return Ok(purged == Purged::Yes);
            }
        };
        Ok(resolved == Resolved::Yes)
    }

    /// Whether the machine allows a change of the record that was read.
    fn is_allowed(&self, named: &SeenToken, change: &RecordChange, before: &Observed) -> bool {
        let token = Token(named.token);
        let decision = match change {
            RecordChange::Resolve(verdict) => {
                let held = match machine::hold(before, token, self.lifetimes.unknown) {
                    Decision::Change(Change { record, .. }, _) => Observed { record: Some(record), ..before.clone() },
                    Decision::Reply(_) => before.clone(),
                };
                machine::resolve(&held, token, verdict)
            }
            RecordChange::Reopen => machine::reopen(before, token, self.lifetimes.released),
            RecordChange::Purge { force } => {
                let ask = machine::Purge { expected: token, forget_unknown: *force };
                return machine::purge(before, &ask) == Purged::Yes;
            }
        };
        match decision {
            Decision::Reply(reply) | Decision::Change(_, reply) => reply == Resolved::Yes,
        }
    }
}
