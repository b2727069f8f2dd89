//! An async function behind a gate: the same order is delivered twice and charged once.
//!
//! ```sh
//! cargo run -p example-plain-function
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hapax::gate::{Attempt, Failure, Reason, Refused};
use hapax::store::Memory;
use hapax::{Call, Gate, Identity, Key, Rule, Scope, Settings};

/// How often a card was charged in this process.
static CHARGES: AtomicU32 = AtomicU32::new(0);

/// The effect. `Ok` means that it happened. A [`Failure`] says that it did not happen, or that the outcome is unknown.
async fn charge(attempt: Attempt, cents: u64) -> Result<String, Failure<String>> {
    if cents == 0 {
        return Err(Failure::finally("there is nothing to charge".into()));
    }
    let number = CHARGES.fetch_add(1, Ordering::SeqCst) + 1;
    Ok(format!("charge {number}: {cents} cents for {}", attempt.operation()))
}

/// Identifies the operation by its tenant and key. The fingerprint covers the payload, which every copy must have.
fn order(key: &str, cents: u64) -> hapax::Result<Call> {
    let identity = Identity::plain();
    let payload = identity.fingerprint(Rule(1), &[&cents.to_be_bytes()]);
    Ok(identity.call(&Scope::tenant("shop", "acme")?, &Key::new(key)?).fingerprint(payload))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let store = Memory::new();
    let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;

    for (key, cents) in [("order-7", 500), ("order-7", 500), ("order-7", 600)] {
        match gate.run(order(key, cents)?, move |attempt| charge(attempt, cents)).await {
            Ok(run) => println!("{key}: {} ({:?})", run.answer, run.provenance),
            Err(Refused { reason: Reason::Mismatch, .. }) => {
                println!("{key}: not for {cents} cents, the key was used for another amount");
            }
            // A service handles each other reason in its own way: retry later, or find out the outcome.
            Err(refused) => return Err(refused.into()),
        }
    }
    println!("charged {} time(s)", CHARGES.load(Ordering::SeqCst));
    Ok(())
}
