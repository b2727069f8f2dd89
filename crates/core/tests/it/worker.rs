//! The parts of the worker: decisions row by row, watermark, identity of messages.

mod actions;
mod burials;
mod engine;
mod identity;
mod lapsed;
mod parking;
mod pausing;
mod redrive;
mod reopen;
mod rows;
mod stuck;
mod verdicts;
mod watermark;
