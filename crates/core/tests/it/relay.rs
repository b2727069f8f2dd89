//! The relay in random worlds, one for each seed: slow transactions, rollbacks, a sink that loses replies, relays that
//! crash, stall beyond their leases and join.

mod databases;
mod failing;
mod faulty;
mod operators;
mod parking;
mod stopping;
mod world;
mod worlds;
