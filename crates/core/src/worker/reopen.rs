//! Lets the message of a dead letter run again where a record of layer 1 forbids it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::{DeadLetter, DeadReason};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Call, RecordKey};
use crate::machine::{Resolved, Verdict};
use crate::record::{Phase, Record, Seconds};
use crate::settings::Policy;
use crate::store::{Protocol, Store};
use crate::worker::MessageIdentity;

/// Opens what forbids a message to run again, before its dead letter is redriven.
#[async_trait]
pub trait Reopen: fmt::Debug + Send + Sync + 'static {
    /// Lets the message of this letter run again, as far as that is safe. The reason [`DeadReason::NotDone`] is the
    /// word of an operator that no attempt of the message has had an effect, or will have one.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: it may be repeated. The letter waits until then.
    ///
    /// # Cancel safety
    /// If dropped, the message may be open or not.
    async fn reopen(&self, letter: &DeadLetter) -> Result<()>;
}

/// Opens the records of layer 1 of a worker without a ledger.
///
/// A record that is dead, because too many attempts applied nothing, is opened by every redrive. A record whose outcome
/// is unknown is opened by the word of an operator only. A recorded answer stays, and so does the record of a message
/// with another payload.
pub struct RecordReopener {
    store: Arc<dyn Store>,
    identity: MessageIdentity,
    /// How long an open record waits for the next attempt.
    released: Seconds,
    unknown: Seconds,
}

impl RecordReopener {
    /// Opens the records in this store, with the identity and the policy of the worker.
    pub fn new(store: Arc<dyn Store>, identity: MessageIdentity, policy: &Policy) -> Self {
        let seconds = |time: Duration| Seconds(u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1));
        let (released, unknown) = (seconds(policy.released_retention), seconds(policy.unknown_retention));
        Self { store, identity, released, unknown }
    }

    async fn resolve(&self, rk: &RecordKey, record: &Record, phase: Phase) -> Result<Resolved> {
        let (protocol, verdict) = (Protocol::over(&*self.store), Verdict::NotDone { lifetime: self.released });
        if phase == Phase::InProgress {
            let held = protocol.hold(rk, record.token, self.unknown).await?;
            if held == Resolved::Stale {
                return Ok(held);
            }
        }
        protocol.resolve(rk, record.token, &verdict).await
    }
}

#[async_trait]
impl Reopen for RecordReopener {
    async fn reopen(&self, letter: &DeadLetter) -> Result<()> {
        // A message without a key has no record.
        let Ok(identified) = self.identity.identify(&letter.message) else { return Ok(()) };
        let (rk, protocol) = (identified.record_key, Protocol::over(&*self.store));
        let call = Call::new(rk).fingerprint(identified.call.newest_fingerprint());
        let seen = protocol.read(rk).await?;
        let Some(record) = seen.live().filter(|record| call.accepts(record.fingerprint)) else { return Ok(()) };
        let resolved = match record.state.phase() {
            Some(Phase::Dead) => protocol.reopen(&rk, record.token, self.released).await?,
            Some(phase @ (Phase::Indeterminate | Phase::InProgress)) if letter.reason == DeadReason::NotDone => {
                self.resolve(&rk, record, phase).await?
            }
            Some(Phase::Indeterminate | Phase::InProgress | Phase::Released) | None => Resolved::Yes,
        };
        match resolved {
            Resolved::Yes => Ok(()),
            Resolved::Stale => Err(Error::new(ErrorKind::NotApplied, "another attempt of the message is running")),
        }
    }
}

impl fmt::Debug for RecordReopener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordReopener").field("identity", &self.identity).finish_non_exhaustive()
    }
}
