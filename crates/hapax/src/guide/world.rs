// What the examples of outcomes.md share: it shows this first, and the others include it.

use std::sync::Arc;
use hapax::store::Memory;
use hapax::{Call, Gate, Identity, Key, OnLapse, Scope, Settings};

/// A gate under this policy. It must be made inside of a tokio runtime.
fn gate(on_lapse: OnLapse) -> hapax::Result<Gate> {
    let mut settings = Settings::default();
    settings.policy.on_lapse = on_lapse;
    let store = Memory::new();
    Gate::builder(Arc::new(store), settings).build()
}

fn order(key: &str) -> hapax::Result<Call> {
    Ok(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new(key)?))
}
