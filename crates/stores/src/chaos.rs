//! The mutants of the adapters. Their list is that of the core.

#[cfg(feature = "chaos")]
pub(crate) use hapax_core::chaos::on;

/// Always false without the feature `chaos`.
#[cfg(not(feature = "chaos"))]
pub(crate) const fn on(_name: &str) -> bool {
    false
}
