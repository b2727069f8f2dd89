//! Signed calls of AWS services, without the SDKs of the services. An SDK sends by itself again, which a caller that
//! counts what it sends must not allow.
//!
//! ```text
//! credentials.rs  from the usual places of AWS, renewed before they end
//! lent.rs         lends the library of the credentials our HTTP client, clock and sleep
//! sign.rs         the header fields with which a request is signed
//! json.rs         calls whose bodies are JSON, and what answers mean
//! ```

mod credentials;
mod json;
mod lent;
mod sign;

pub use credentials::AwsCredentials;
pub use json::{AwsAnswer, AwsArrival, AwsCall, AwsClient, AwsEndpoint, AwsFailure, AwsRefusal};
#[cfg(feature = "objects")]
pub(crate) use {json::OutgoingCall, sign::S3};
