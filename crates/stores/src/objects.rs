//! Answers in object storage.
//!
//! ```text
//! url.rs      the URL of a bucket
//! bucket.rs   writes, reads and removes objects, and says what a failure means
//! check.rs    whether a bucket can be used, and how long it keeps objects
//! ```

mod bucket;
mod check;
mod url;

pub use self::bucket::{AnswerBucket, FoundObject};
pub use self::url::BucketUrl;
