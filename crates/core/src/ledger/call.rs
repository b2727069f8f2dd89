use crate::gate::Attempt;
use crate::key::{Fingerprint, OperationId, Rule};

/// An operation for a ledger to run once: its id, and the payload's fingerprint under each rule that is accepted.
///
/// It comes from the [`Call`](crate::Call) of a gate, or from the fields `Hapax-Operation` and `Hapax-Fingerprint` of a
/// request.
///
/// ```
/// use hapax::ledger::Call;
/// use hapax::{Fingerprint, Identity, Key, Rule, Scope};
///
/// let identity = Identity::plain();
/// let derived = identity.call(&Scope::tenant("payments", "acme")?, &Key::new("order-7")?);
/// let received = Call::new(derived.record_key().operation().to_string().parse()?);
/// assert_eq!(Call::from(derived), received);
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    operation: OperationId,
    fingerprint: Fingerprint,
    older: Option<Fingerprint>,
}

impl Call {
    /// A call whose payload is not compared.
    pub const fn new(operation: OperationId) -> Self {
        Self { operation, fingerprint: Fingerprint::NONE, older: None }
    }

    /// Sets the fingerprint to compare the payload by. A new row stores it.
    #[must_use]
    pub const fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Also accepts rows that store the payload's fingerprint under an older rule.
    #[must_use]
    pub const fn or_older(mut self, fingerprint: Fingerprint) -> Self {
        self.older = Some(fingerprint);
        self
    }

    /// The id of the operation.
    pub const fn operation(&self) -> OperationId {
        self.operation
    }

    /// The fingerprint that a new row stores.
    pub const fn newest_fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The payload's fingerprint under the older rule that is accepted, too.
    pub const fn older_fingerprint(&self) -> Option<Fingerprint> {
        self.older
    }

    /// Whether a row with this fingerprint has the same payload. Without a rule on either side nothing is compared: a
    /// caller that sends no fingerprint cannot show that its payload is another one.
    pub fn accepts(&self, recorded: Fingerprint) -> bool {
        let is_uncompared = recorded.rule() == Rule::NONE || self.fingerprint.rule() == Rule::NONE;
        is_uncompared || self.fingerprint == recorded || self.older == Some(recorded)
    }
}

impl From<crate::Call> for Call {
    fn from(call: crate::Call) -> Self {
        Self {
            operation: call.record_key().operation(),
            fingerprint: call.newest_fingerprint(),
            older: call.older_fingerprint(),
        }
    }
}

/// The call of an attempt of a gate: the handler's ledger compares the payload that the gate has compared, too.
impl From<&Attempt> for Call {
    fn from(attempt: &Attempt) -> Self {
        Self::new(attempt.operation()).fingerprint(attempt.fingerprint())
    }
}
