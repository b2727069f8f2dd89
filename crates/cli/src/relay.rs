//! The relay between an outbox and a sink: its course (`run`), and whether both can be used.

pub(crate) mod health;
pub(crate) mod run;
mod trial;
