//! Everything that can go wrong at one point, at every point: each call to the store meets each fault, each future is dropped at
//! each step, each poll of a handler panics. After each, the key is completed once, released with nothing applied, or
//! indeterminate with a reason; never free with an effect behind it.
//!
//! A sweep enumerates its points and prints how many it covered. Nothing in here waits: time is virtual.

mod act;
mod oracle;
mod scenario;
mod sweep;
mod world;

mod drops;
mod faults;
mod panics;
mod protocol;
mod spills;
