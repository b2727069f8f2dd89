//! Sweeps over the gate. Each test enumerates the points of a small run and repeats the run with something wrong at
//! each of them.

mod handler;
mod oracle;
mod scenario;
mod setup;
mod world;

mod drops;
mod faults;
mod outages;
mod panics;
mod protocol;
