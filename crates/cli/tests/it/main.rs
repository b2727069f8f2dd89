//! Tests of the binary, as a user starts it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

#[cfg(target_os = "linux")]
mod address_share;
mod admin;
mod admin_api;
mod admin_process;
#[cfg(target_os = "linux")]
mod attacks;
#[cfg(target_os = "linux")]
mod attacks_on_slots;
mod broken_uploads;
mod client_aborts;
mod commands_over_admin;
mod config;
mod cross_origin;
mod dashboard;
mod dead;
mod dead_letters;
#[cfg(feature = "demo")]
mod demo;
#[cfg(target_os = "linux")]
mod disk;
mod edited_records;
mod file_modes;
mod fingerprints;
mod foreign_journals;
mod forged_fields;
#[cfg(target_os = "linux")]
mod forwarder;
mod framing;
#[cfg(target_os = "linux")]
mod full_disk;
mod gateway;
mod grpc;
mod harness;
mod hosts;
mod http2;
mod http2_clients;
mod http2_frames;
mod http2_uploads;
mod http_contract;
mod json_schema;
mod keys;
mod keys_commands;
mod keys_over_admin;
mod kubernetes;
mod lifecycle;
mod logs;
mod malformed_requests;
mod memory_bounds;
mod metrics;
mod migrate;
mod moved_files;
#[cfg(feature = "otlp")]
mod otlp;
mod outbox;
mod outbox_commands;
mod packaging;
mod plan;
mod profiles;
mod raw_http;
mod reconcile;
mod reconciliation;
mod relay;
mod response_summary;
mod routes;
mod secrets;
mod start_errors;
mod stop;
mod timing;
mod tls;
mod torture;
mod versions;
mod websocket;
mod worker;
