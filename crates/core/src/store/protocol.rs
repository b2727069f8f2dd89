use std::time::Duration;

use bytes::Bytes;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Identity, RecordKey};
use crate::machine::{
    self, Begin, Begun, Cancelled, Change, Claim, Complete, Completed, Decision, Lapse, Observed, Pinned, Purge,
    Purged, Renewed, Resolved, Settled, Verdict,
};
use crate::record::{Millis, Owner, Phase, Seconds, State, Timestamp, Token};
use crate::store::{Inserted, Inspect, Store, Swapped};

/// How many times an operation reads, decides and swaps before it gives up on a record that keeps changing.
const TRIES: usize = 8;

/// How long one process may take to write the pin of a namespace.
const PIN_LEASE: Millis = Millis(30_000);

/// 20 years: longer than any record in the namespace.
const PIN_RETENTION: Seconds = Seconds(20 * 366 * 24 * 3600);

/// The operations of the protocol over a store. `begin`, `renew` and `complete` use the store's own step where that
/// suffices; all others read, let the machine decide, and swap.
///
/// Every operation is safe to repeat, also after an error of kind `Unknown`. If the record changes during each of 8
/// tries, `begin` returns `Busy` and every other operation fails with `NotApplied`.
///
/// # Cancel safety
/// Dropping the future of an operation leaves its outcome unknown; repeat the operation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax::store::Memory;
/// # use hapax::{Gate, Identity, Key, Scope, Settings};
/// # let store = Arc::new(Memory::new());
/// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// use hapax::machine::{Resolved, Verdict};
/// use hapax::store::Protocol;
/// use hapax::{Seconds, State};
///
/// # let gate = Gate::builder(Arc::clone(&store) as _, Settings::default()).build()?;
/// # let lost = std::io::Error::other("the connection broke");
/// # gate.run(call, |_| async { Err::<String, _>(lost.into()) }).await.unwrap_err();
/// // An operator found out that the charge happened: hold the record, then record the answer.
/// let (protocol, rk) = (Protocol::over(&*store), call.record_key());
/// let token = protocol.read(rk).await?.live().expect("the attempt left a record").token;
/// assert_eq!(protocol.hold(&rk, token, Seconds(3600)).await?, Resolved::Yes);
/// let happened = Verdict::Done { answer: "charged".into(), retention: Seconds(3600) };
/// assert_eq!(protocol.resolve(&rk, token, &happened).await?, Resolved::Yes);
/// assert!(matches!(protocol.read(rk).await?.live().unwrap().state, State::Completed(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Protocol<'a> {
    store: &'a dyn Store,
}

impl<'a> Protocol<'a> {
    /// The protocol over this store.
    pub fn over(store: &'a dyn Store) -> Self {
        Self { store }
    }

    /// Asks for a grant: [`machine::begin`](crate::machine::begin()).
    ///
    /// # Errors
    /// Those of the store, as for every operation here.
    pub async fn begin(self, ask: &Begin) -> Result<Begun> {
        let rk = ask.call.record_key();
        for _ in 0..TRIES {
            let seen = match self.store.begin(ask).await? {
                Inserted::Granted(grant) => return Ok(Begun::Granted(grant)),
                Inserted::Found(seen) => seen,
            };
            // Boxed, because most begins are granted at once; their future stays small.
            if let Some(begun) = Box::pin(self.carry_out(&rk, &seen, machine::begin(&seen, ask))).await? {
                return Ok(begun);
            }
        }
        Ok(Begun::Busy(ask.lease.into()))
    }

    /// Returns the record, expired or not.
    ///
    /// # Errors
    /// See [`Protocol::begin`].
    pub async fn read(self, rk: RecordKey) -> Result<Observed> {
        self.store.read(&rk).await
    }

    /// Starts the lease again: [`machine::renew`](crate::machine::renew()).
    ///
    /// # Errors
    /// See [`Protocol::begin`].
    pub async fn renew(self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.store.renew(rk, claim).await
    }

    /// Records an answer: [`machine::complete`](crate::machine::complete()).
    ///
    /// # Errors
    /// See [`Protocol::begin`], and `NotApplied` after 8 tries.
    pub async fn complete(self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        for _ in 0..TRIES {
            let found = self.store.complete(rk, ask).await?;
            let Completed::Lost(record) = &found else {
                return Ok(found);
            };
            // No completion overrides a recorded answer, so there is nothing to try.
            if matches!(record.state, State::Completed(_)) {
                return Ok(found);
            }
            // The store may leave row C7, another grant, to this read and swap (clause 8 of the contract).
            let seen = self.store.read(rk).await?;
            if let Some(completed) = Box::pin(self.carry_out(rk, &seen, machine::complete(&seen, ask))).await? {
                return Ok(completed);
            }
        }
        Err(contended())
    }

    /// Gives a grant back, "known not applied": [`machine::release`](crate::machine::release()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn release(self, rk: &RecordKey, claim: &Claim, lifetime: Seconds) -> Result<Settled> {
        self.change(rk, |seen| machine::release(seen, claim, lifetime)).await
    }

    /// Cancels a begin that got, or may still get, a grant that no handler uses:
    /// [`machine::cancel`](crate::machine::cancel()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn cancel(self, rk: &RecordKey, owner: Owner, lifetime: Seconds) -> Result<Cancelled> {
        self.change(rk, |seen| machine::cancel(seen, owner, lifetime)).await
    }

    /// Ends a lease for good, because the outcome is unknown: [`machine::abandon`](crate::machine::abandon()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn abandon(self, rk: &RecordKey, claim: &Claim) -> Result<Settled> {
        self.change(rk, |seen| machine::abandon(seen, claim)).await
    }

    /// Closes a record after its last attempt: [`machine::bury`](crate::machine::bury()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn bury(self, rk: &RecordKey, claim: &Claim, lifetime: Seconds) -> Result<Settled> {
        self.change(rk, |seen| machine::bury(seen, claim, lifetime)).await
    }

    /// Makes a record with an expired lease indeterminate, so that it can be resolved:
    /// [`machine::hold`](crate::machine::hold()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn hold(self, rk: &RecordKey, expected: Token, unknown_retention: Seconds) -> Result<Resolved> {
        self.change(rk, |seen| machine::hold(seen, expected, unknown_retention)).await
    }

    /// Writes a verdict on an indeterminate record: [`machine::resolve`](crate::machine::resolve()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn resolve(self, rk: &RecordKey, expected: Token, verdict: &Verdict) -> Result<Resolved> {
        self.change(rk, |seen| machine::resolve(seen, expected, verdict)).await
    }

    /// Ties a namespace to an identity. Call it at start-up, before the first begin, with a new random `owner`.
    ///
    /// Under another secret every retry would look like a new operation, so a process must not start unless this
    /// returns [`Pinned::Yes`]. An identity with a secret writes a record, the pin, that lives for 20 years. An
    /// identity without one only reads it.
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// use hapax::machine::Pinned;
    /// use hapax::store::{Memory, Protocol};
    /// use hapax::{Identity, Owner};
    ///
    /// let store = Memory::new();
    /// let protocol = Protocol::over(&store);
    /// assert_eq!(protocol.pin("shop", &Identity::keyed([7; 32]), Owner([1; 16])).await?, Pinned::Yes);
    /// // A process with another secret, or with none, must not start.
    /// assert_eq!(protocol.pin("shop", &Identity::keyed([8; 32]), Owner([2; 16])).await?, Pinned::OtherSecret);
    /// assert_eq!(protocol.pin("shop", &Identity::plain(), Owner([3; 16])).await?, Pinned::OtherSecret);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pin(self, namespace: &str, identity: &Identity, owner: Owner) -> Result<Pinned> {
        // The record key is the same for every identity; only the fingerprint depends on the secret.
        let call = identity.pin(namespace);
        if !identity.is_keyed() {
            let seen = self.read(call.record_key()).await?;
            return Ok(machine::pin_of_plain(&seen, &call));
        }
        // Retry: writing the same pin twice is harmless, so an expired lease needs no operator.
        let ask = Begin { call, owner, lease: PIN_LEASE, unknown_retention: PIN_RETENTION, on_lapse: Lapse::Retry };
        let begun = self.begin(&ask).await?;
        if let Begun::Granted(grant) | Begun::Mine(grant) = &begun {
            let completion = Complete {
                claim: Claim::from(grant),
                fingerprint: grant.fingerprint,
                answer: Bytes::new(),
                retention: PIN_RETENTION,
                // A first token is the store's clock.
                ended: Timestamp(grant.token.0),
                age: Duration::ZERO,
            };
            // Another process that completed it first wrote the same pin.
            self.complete(&grant.rk, &completion).await?;
        }
        Ok(machine::pin_of_keyed(&begun))
    }

    /// Lets a dead record be granted again: [`machine::reopen`](crate::machine::reopen()).
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn reopen(self, rk: &RecordKey, expected: Token, lifetime: Seconds) -> Result<Resolved> {
        self.change(rk, |seen| machine::reopen(seen, expected, lifetime)).await
    }

    /// Removes a record: [`machine::purge`](crate::machine::purge()). `inspect` is the same store.
    ///
    /// # Errors
    /// See [`Protocol::complete`].
    pub async fn purge(self, inspect: &dyn Inspect, rk: &RecordKey, ask: &Purge) -> Result<Purged> {
        for _ in 0..TRIES {
            let seen = self.store.read(rk).await?;
            let purged = machine::purge(&seen, ask);
            if purged != Purged::Yes || inspect.purge(rk, &seen).await? == Swapped::Yes {
                return Ok(purged);
            }
        }
        Err(contended())
    }

    async fn change<R>(self, rk: &RecordKey, decide: impl Fn(&Observed) -> Decision<R> + Send) -> Result<R> {
        for _ in 0..TRIES {
            let seen = self.store.read(rk).await?;
            let decision = decide(&seen);
            if let Some(reply) = self.carry_out(rk, &seen, decision).await? {
                return Ok(reply);
            }
        }
        Err(contended())
    }

    /// Carries out a decision. Returns `None` if the record changed since it was read.
    async fn carry_out<R>(self, rk: &RecordKey, seen: &Observed, decision: Decision<R>) -> Result<Option<R>> {
        match decision {
            Decision::Reply(reply) => Ok(Some(reply)),
            Decision::Change(next, reply) => match self.swap(rk, seen, &next).await? {
                Swapped::Yes => Ok(Some(reply)),
                Swapped::Changed => Ok(None),
            },
        }
    }

    async fn swap(self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        if Mutant::HoldDoesNotCompare.is_on() && next.record.state.phase() == Some(Phase::Indeterminate) {
            while self.store.swap(rk, &self.store.read(rk).await?, next).await? == Swapped::Changed {}
            return Ok(Swapped::Yes);
        }
        self.store.swap(rk, seen, next).await
    }
}

fn contended() -> Error {
    Error::new(ErrorKind::NotApplied, "the record changed during each of 8 tries; try again")
}
