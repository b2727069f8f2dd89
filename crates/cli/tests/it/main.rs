//! The binary as a user starts it.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod aborts;
#[cfg(target_os = "linux")]
mod attacks;
mod config;
mod contract;
mod demo;
#[cfg(target_os = "linux")]
mod disk;
mod forged;
#[cfg(target_os = "linux")]
mod forwarder;
mod frames;
mod gateway;
mod hostile;
mod http2;
mod lifecycle;
mod logs;
mod metrics;
mod raw;
mod routes;
mod secrets;
mod sized;
mod timing;
mod tls;
mod told;
mod torture;
mod world;
