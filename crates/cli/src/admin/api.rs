//! The admin API: what operators see and do. The three admin listeners serve it, and `hapax keys --store` calls it
//! without a listener. docs/admin.md describes it.
//!
//! ```text
//! guard.rs    what a request over HTTP must show before it may write
//! router.rs   from a request over HTTP to a call of the API, and back
//! calls.rs    what a call is, and the calls about the process; those of a kind of target are with their room:
//! records.rs  records: list, show; records/writes.rs has resolve, reopen, release, purge; record/ has what is shown
//! dead.rs     dead letters: list, show, redrive, drop; dead/advice.rs says what to do about each
//! outbox.rs   the outbox: what waits, parked keys, republish
//! history.rs  the last hour of the process, minute by minute
//! policy.rs   what this process does, under which policy
//! values.rs   times, bytes and text; ordering_key.rs has keys of the outbox as text
//! audit.rs    the file to which every write appends its events
//! ```

pub(crate) mod audit;
pub(crate) mod calls;
pub(crate) mod dead;
mod guard;
mod history;
pub(crate) mod ordering_key;
pub(crate) mod outbox;
mod policy;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod router;
pub(crate) mod values;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::broker::DeadLetterStore;
use hapax::outbox::{Outbox, OutboxUpkeep};
use hapax::{Error, ErrorKind};
use hapax_systems::OpenedOutbox;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use audit::{AuditFile, AuditedWrite};
use calls::ApiCall;
use record::RecordView;
use records::RecordDesk;

use crate::serve::history::MetricHistory;

pub(crate) use guard::Requester;
pub(crate) use policy::{PolicyDescription, on_lapse, policy_fields};

/// What one process lets operators see and do.
#[derive(Debug)]
pub(crate) struct AdminApi {
    /// The records of the process. None in a relay.
    pub(crate) records: Option<RecordDesk>,
    /// The dead letters that the process can read. None outside of a worker.
    pub(crate) dead: Option<Arc<dyn DeadLetterStore>>,
    /// The outbox. None outside of a relay.
    pub(crate) outbox: Option<OpenedOutbox>,
    /// The last hour of the process. None in a command.
    pub(crate) history: Option<MetricHistory>,
    /// The policy of the process, for operators.
    pub(crate) policy: PolicyDescription,
    /// Where each write is noted before and after it. Without it, nothing can be written.
    pub(crate) audit: Option<AuditFile>,
}

/// Why a call of the API has no result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ApiError {
    #[serde(skip)]
    pub(crate) status: StatusCode,
    /// A name for programs.
    #[serde(rename = "error")]
    pub(crate) code: Cow<'static, str>,
    /// What is wrong, for people.
    pub(crate) detail: String,
    /// The command that would work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// The record as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<Box<RecordView>>,
    /// The time after which nobody processes a dead letter any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) free_at: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let (code, detail) = (code.into(), detail.into());
        Self { status, code, detail, command: None, record: None, free_at: None }
    }

    /// The request is wrong, whatever the state of the system.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
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
        Self { records: None, dead: None, outbox: None, history: None, policy, audit: audit_file.map(AuditFile::new) }
    }

    /// Carries out a call that was allowed, a write between its audit events.
    ///
    /// # Cancel safety
    /// A dropped write may have happened without the audit event that has its result. The listener runs writes in a
    /// task of their own.
    pub(crate) async fn call<C: ApiCall>(&self, requester: &Requester, call: &C) -> Result<C::Answer, ApiError> {
        let Some(action) = C::WRITE else { return call.carry_out(self).await };
        let audit = self.audit.as_ref().ok_or_else(no_audit_file)?;
        if call.is_dry_run() {
            return call.carry_out(self).await;
        }
        audit.around(&AuditedWrite::new(requester, action, &call.subject()), call.carry_out(self)).await
    }

    fn records(&self) -> Result<&RecordDesk, ApiError> {
        self.records.as_ref().ok_or_else(|| self.lacks("records", "a gateway or a worker"))
    }

    fn dead(&self) -> Result<&dyn DeadLetterStore, ApiError> {
        let place = "a worker whose dead letters are in a store";
        self.dead.as_deref().ok_or_else(|| self.lacks("dead letters", place))
    }

    fn outbox(&self) -> Result<&dyn OutboxUpkeep, ApiError> {
        Ok(&*self.opened_outbox()?.upkeep)
    }

    /// The rows of the outbox, as relays read them.
    fn outbox_rows(&self) -> Result<&dyn Outbox, ApiError> {
        Ok(&*self.opened_outbox()?.outbox)
    }

    fn opened_outbox(&self) -> Result<&OpenedOutbox, ApiError> {
        self.outbox.as_ref().ok_or_else(|| self.lacks("outbox", "a relay"))
    }

    fn lacks(&self, what: &str, owner: &str) -> ApiError {
        let detail = format!("this {} has no {what}; ask {owner}", self.policy.process);
        ApiError::new(StatusCode::NOT_FOUND, "wrong-process", detail)
    }
}

fn no_audit_file() -> ApiError {
    let detail =
        "there is no audit file, so nothing is changed; start the process, or the command, with --audit-file FILE";
    ApiError::new(StatusCode::FORBIDDEN, "no-audit-file", detail)
}
