//! The known bugs of the adapters. Their list is that of the core.

pub(crate) use hapax_core::chaos::Mutant;
