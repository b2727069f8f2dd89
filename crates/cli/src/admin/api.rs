//! The admin API: what operators see and do. The three admin listeners serve it, and `hapax keys --store` calls it
//! without a listener. docs/admin.md describes it.
//!
//! ```text
//! guard.rs    what a request over HTTP must show before it may write
//! serve.rs    from a request over HTTP to a call of the API, and back
//! call.rs     the endpoints: method and path, query, body
//! records.rs  records: list, show, resolve, reopen, release, purge; record/ has their JSON and the advice
//! dead.rs     dead letters: list, show, redrive, drop
//! outbox.rs   the outbox: what waits, parked keys, republish
//! policy.rs   what this process does, under which policy
//! values.rs   times, bytes and text; ordering_key.rs has keys of the outbox as text
//! audit.rs    the file to which every write appends its events
//! ```

pub(crate) mod audit;
pub(crate) mod call;
pub(crate) mod dead;
mod guard;
pub(crate) mod ordering_key;
pub(crate) mod outbox;
mod policy;
mod record;
pub(crate) mod records;
pub(crate) mod serve;
pub(crate) mod values;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::broker::DeadLetterStore;
use hapax::outbox::OutboxUpkeep;
use hapax::{Error, ErrorKind, Timestamp};
use http::StatusCode;
use serde_json::{Map, Value, json};

use audit::AuditFile;
use call::{ApiCall, ReadEndpoint, WriteEndpoint, WriteTarget};
use records::RecordDesk;

use crate::admin::api::values::exact_time;

pub(crate) use guard::Requester;
pub(crate) use policy::{PolicyDescription, policy_fields};

/// What one process lets operators see and do.
#[derive(Debug)]
pub(crate) struct AdminApi {
    /// What the process is, for errors: `gateway`.
    pub(crate) process: &'static str,
    /// The records of the process. None in a relay.
    pub(crate) records: Option<RecordDesk>,
    /// The dead letters that the process can read. None outside of a worker.
    pub(crate) dead: Option<Arc<dyn DeadLetterStore>>,
    /// The outbox. None outside of a relay.
    pub(crate) outbox: Option<Arc<dyn OutboxUpkeep>>,
    /// What the process does, under which policy.
    pub(crate) policy: Value,
    /// Where each write is noted before and after it. Without it, nothing can be written.
    pub(crate) audit: Option<AuditFile>,
}

/// Why a call of the API has no result.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// A name for programs.
    pub(crate) code: &'static str,
    /// What is wrong, for people.
    pub(crate) detail: String,
    /// The command that would work.
    pub(crate) command: Option<String>,
    /// The record as it is now.
    pub(crate) record: Option<Value>,
    /// The time after which nobody processes a dead letter any more.
    pub(crate) free_at: Option<Timestamp>,
    /// The method of the path, if the request has another one.
    pub(crate) allow: Option<AllowedMethod>,
}

/// The method of a path of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedMethod {
    Get,
    Post,
}

impl AllowedMethod {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), command: None, record: None, free_at: None, allow: None }
    }

    /// The request is wrong, whatever the state of the system.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("error".into(), json!(self.code));
        fields.insert("detail".into(), json!(self.detail));
        fields.extend(self.command.as_ref().map(|command| ("command".to_owned(), json!(command))));
        fields.extend(self.record.clone().map(|record| ("record".to_owned(), record)));
        fields.extend(self.free_at.map(|free_at| ("free_at".to_owned(), json!(exact_time(free_at)))));
        Value::Object(fields)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let detail = crate::causes::in_words(&error);
        match error.kind() {
            ErrorKind::Invalid => Self::invalid(detail),
            ErrorKind::Damaged => Self::new(StatusCode::CONFLICT, "damaged", detail),
            ErrorKind::NotApplied => Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-applied", detail),
            ErrorKind::Unknown => Self::new(StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", detail),
            ErrorKind::Full | ErrorKind::Unusable | _ => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-unusable", detail)
            }
        }
    }
}

/// How long a store may take for one call. The stores themselves set no deadline.
const DEADLINE: Duration = Duration::from_secs(10);

/// Waits for a store.
async fn within_deadline<T>(call: impl Future<Output = hapax::Result<T>>) -> Result<T, ApiError> {
    let slow = || format!("the store does not reply within {DEADLINE:?}");
    let replied = tokio::time::timeout(DEADLINE, call).await;
    let replied = replied.map_err(|_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", slow()))?;
    replied.map_err(ApiError::from)
}

impl AdminApi {
    /// The API of a process, without records, dead letters and an outbox.
    pub(crate) fn new(policy: PolicyDescription, audit_file: Option<PathBuf>) -> Self {
        Self {
            process: policy.process(),
            records: None,
            dead: None,
            outbox: None,
            policy: policy.into_json(),
            audit: audit_file.map(AuditFile::new),
        }
    }

    /// Carries out a call that was allowed.
    ///
    /// # Cancel safety
    /// A dropped write may have happened without the audit event that has its result. The listener runs writes in a
    /// task of their own.
    pub(crate) async fn handle(&self, requester: &Requester, call: &ApiCall) -> Result<Value, ApiError> {
        match call {
            ApiCall::Read(endpoint) => self.read(endpoint).await,
            ApiCall::Write(endpoint) => self.write(requester, endpoint).await,
        }
    }

    async fn read(&self, endpoint: &ReadEndpoint) -> Result<Value, ApiError> {
        match endpoint {
            ReadEndpoint::Records(ask) => self.records()?.list(ask).await,
            ReadEndpoint::Record(rk, with_answer) => self.records()?.show(rk, *with_answer).await,
            ReadEndpoint::DeadLetters(ask) => dead::list(self.dead()?, ask).await,
            ReadEndpoint::DeadLetter(id, with_payload) => dead::show(self.dead()?, *id, *with_payload).await,
            ReadEndpoint::Outbox(ask) => outbox::list(self.outbox()?, ask).await,
            ReadEndpoint::Event(id, with_payload) => outbox::show(self.outbox()?, *id, *with_payload).await,
            ReadEndpoint::Policy => Ok(self.policy.clone()),
            ReadEndpoint::Audit(ask) => match &self.audit {
                Some(audit) => audit.read(ask.clone()).await,
                None => Err(no_audit_file()),
            },
            ReadEndpoint::OpenApi => Ok(openapi()),
        }
    }

    async fn write(&self, requester: &Requester, endpoint: &WriteEndpoint) -> Result<Value, ApiError> {
        let audit = self.audit.as_ref().ok_or_else(no_audit_file)?;
        if endpoint.is_dry_run() {
            return self.carry_out(&endpoint.target).await;
        }
        audit.around(requester, endpoint, self.carry_out(&endpoint.target)).await
    }

    async fn carry_out(&self, target: &WriteTarget) -> Result<Value, ApiError> {
        match target {
            WriteTarget::Record(rk, action) => self.records()?.act(rk, action).await,
            WriteTarget::DeadLetter(id, write) => dead::act(self.dead()?, *id, write).await,
            WriteTarget::Outbox(action) => outbox::act(self.outbox()?, action).await,
        }
    }

    fn records(&self) -> Result<&RecordDesk, ApiError> {
        self.records.as_ref().ok_or_else(|| self.lacks("records", "a gateway or a worker"))
    }

    fn dead(&self) -> Result<&dyn DeadLetterStore, ApiError> {
        let place = "a worker whose dead letters are in a store";
        self.dead.as_deref().ok_or_else(|| self.lacks("dead letters", place))
    }

    fn outbox(&self) -> Result<&dyn OutboxUpkeep, ApiError> {
        self.outbox.as_deref().ok_or_else(|| self.lacks("outbox", "a relay"))
    }

    fn lacks(&self, what: &str, owner: &str) -> ApiError {
        ApiError::not_found(format!("this {} has no {what}; ask {owner}", self.process))
    }
}

fn no_audit_file() -> ApiError {
    let detail = "this process has no audit file, so that it changes nothing; start it with --audit-file FILE";
    ApiError::new(StatusCode::FORBIDDEN, "no-audit-file", detail)
}

/// The description of the API.
pub(crate) const OPENAPI: &str = include_str!("api/openapi.json");

fn openapi() -> Value {
    serde_json::from_str(OPENAPI).expect("the document is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_the_api_is_json() {
        assert_eq!(openapi()["info"]["version"], "1");
    }
}
