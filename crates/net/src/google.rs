//! Calls of Google Cloud services over gRPC, with Application Default Credentials.
//!
//! ```text
//! credentials.rs  access tokens, renewed before they end
//! places.rs       the usual places of Google, and the files that they have
//! exchange.rs     asks for access tokens over HTTP
//! objects.rs      requests to a bucket
//! crc32c.rs       the checksum of an object
//! grpc.rs         calls and streams of a service, and what failures tell
//! ```

#[cfg(feature = "objects")]
mod crc32c;
mod credentials;
mod exchange;
mod grpc;
#[cfg(feature = "objects")]
mod objects;
mod places;
#[cfg(test)]
mod test_server;

pub use credentials::GoogleCredentials;
pub use grpc::{GoogleCall, GoogleClient, GoogleEndpoint, GoogleFailure, GoogleStatus, GoogleStream};
#[cfg(feature = "objects")]
pub(crate) use objects::{GoogleObjects, NAME_IS_TAKEN, fields_of_a_write};
pub use tonic::Code as GoogleCode;
