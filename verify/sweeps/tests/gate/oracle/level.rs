//! How much goes wrong in a run.

/// Bounds the outcomes that a caller may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultLevel {
    /// The store answers each call.
    None,
    /// One store call is answered late, or never, or with an error that leaves its outcome open.
    OneCall,
    /// Anything else.
    Many,
}
