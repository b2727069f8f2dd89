//! What the adapters share to reach servers. Each part is a feature, and none is on by default.
//!
//! | feature | |
//! |---|---|
//! | `aws` | [`aws`]: signed calls of AWS services, with credentials from the usual places |
//! | `files` | [`files`]: reads the files that a user names, and refuses a secret to which other users have a right |
//! | `google` | [`google`]: calls of Google Cloud services over gRPC, with Application Default Credentials |
//! | `http` | [`http`]: a client of HTTP/1.1 that says whether a byte of a request may have left |
//! | `objects` | [`objects`]: a bucket of S3; with `google`, a bucket of Google Cloud Storage, too |
//! | `tls` | [`tls`]: TLS for clients, and certificates in PEM |
//! | `url` | [`url`]: URLs with several hosts, credentials and parameters |

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "files")]
pub mod files;
#[cfg(feature = "google")]
pub mod google;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(any(feature = "aws", feature = "google"))]
mod renewed;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "url")]
pub mod url;
#[cfg(feature = "aws")]
mod xml;
