//! Calls of Google Cloud services over gRPC, with Application Default Credentials.
//!
//! ```text
//! credentials.rs  access tokens, renewed before they end
//! places.rs       the usual places of Google, and the files that they have
//! exchange.rs     asks for access tokens over HTTP
//! grpc.rs         calls and streams of a service, and what failures tell
//! ```

mod credentials;
mod exchange;
mod grpc;
mod places;
#[cfg(test)]
mod test_server;

pub use credentials::GoogleCredentials;
pub use grpc::{GoogleCall, GoogleClient, GoogleEndpoint, GoogleFailure, GoogleStatus, GoogleStream};
pub use tonic::Code as GoogleCode;
