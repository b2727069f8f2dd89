//! What is measured.

mod gate;
mod gateway;
mod http;
mod memory;
mod sqlite;
mod twins;

use hapax_core::{Call, Identity, Key, Rule, Scope};

use crate::harness::Subject;

pub(crate) use twins::resident_bytes;

/// Every subject of the library.
pub(crate) fn core() -> Vec<Subject> {
    vec![
        memory::store_alone(),
        gate::run(),
        gate::run_beside_its_store(),
        twins::of_one_key(),
        twins::waiting(),
        sqlite::durable(),
    ]
}

/// The HTTP layer.
pub(crate) fn http() -> Vec<Subject> {
    vec![http::fresh(), http::replays(), http::bare()]
}

/// The gateway as a process, under load.
pub(crate) fn gateway() -> anyhow::Result<Vec<Subject>> {
    gateway::all()
}

/// Calls whose keys no earlier batch had.
struct Calls {
    identity: Identity,
    scope: Scope,
    next: u64,
}

impl Calls {
    fn new() -> Self {
        Self { identity: Identity::plain(), scope: Scope::tenant("bench", "acme").expect("a scope"), next: 0 }
    }

    fn take(&mut self, count: usize) -> Vec<Call> {
        (0..count).map(|_| self.take_one()).collect()
    }

    fn take_one(&mut self) -> Call {
        self.next += 1;
        call(&self.identity, &self.scope, self.next)
    }
}

/// What a transport does for each request: key, scope, fingerprint.
fn call(identity: &Identity, scope: &Scope, number: u64) -> Call {
    let key = Key::new(number.to_be_bytes()).expect("a key");
    identity
        .call(scope, &key)
        .fingerprint(identity.fingerprint(Rule(1), &[b"POST", b"/charges", b"", b"", b"{\"amount\":500}"]))
}
