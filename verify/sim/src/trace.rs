//! The events of a run, one a line, and a hash over them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

/// How often each kind of event happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// The lines of a run. Two runs of one seed must have the same hash.
pub(crate) struct Trace {
    now: Duration,
    hash: Fnv,
    /// None if no trace was requested; then only the hash is kept.
    lines: Option<Vec<String>>,
    pub(crate) counts: Counts,
}

impl Trace {
    pub(crate) fn new(kept: bool) -> Self {
        Self { now: Duration::ZERO, hash: Fnv::default(), lines: kept.then(Vec::new), counts: Counts::new() }
    }

    pub(crate) fn at(&mut self, now: Duration) {
        self.now = now;
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn line(&mut self, what: fmt::Arguments<'_>) {
        let (now, hash) = (self.now, &mut self.hash);
        hash.number(u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        hash.write_fmt(what).expect("hashing never fails");
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>10.6}  {what}", now.as_secs_f64()));
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.0
    }

    pub(crate) fn text(&self) -> String {
        self.lines.iter().flatten().fold(String::new(), |text, line| text + line + "\n")
    }
}

/// FNV-1a. Its result is the same on every machine and with every Rust release, unlike that of `DefaultHasher`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn number(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
