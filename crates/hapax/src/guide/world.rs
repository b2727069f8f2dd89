// Shared by the examples of outcomes.md and from_a_pattern.md. outcomes.md shows it, and the examples include it.

use std::sync::Arc;
use hapax::store::Memory;
use hapax::{Call, Gate, Identity, Key, OnLapse, Policy, Scope, Settings};

/// A gate with this lapse policy. Call it inside of a tokio runtime.
fn gate(on_lapse: OnLapse) -> hapax::Result<Gate> {
    let settings = Settings::default().policy(Policy::default().on_lapse(on_lapse));
    let store = Memory::new();
    Gate::builder(Arc::new(store), settings).build()
}

fn order(key: &str) -> hapax::Result<Call> {
    Ok(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new(key)?))
}
