//! The binary as a user starts it.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod config;
mod demo;
mod gateway;
mod lifecycle;
mod routes;
mod secrets;
mod torture;
mod world;
