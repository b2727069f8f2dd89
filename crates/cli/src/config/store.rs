//! `[store]`: where records are kept, and where completions are kept that the store does not confirm.

pub(super) mod state_directory;
