//! Answers in object storage.
//!
//! ```text
//! url.rs      the URL of a bucket
//! bucket.rs   writes, reads and removes objects, and says what a failure means
//! check.rs    whether a bucket can be used, and how long it keeps objects
//! far.rs      a store around a store, whose large answers lie in a bucket
//! writes.rs   the writes that are under way
//! inspect.rs  the maintenance of such a store
//! ```

mod bucket;
mod check;
mod far;
mod inspect;
mod url;
mod writes;

pub use self::bucket::{AnswerBucket, FoundObject};
pub use self::far::FarAnswers;
pub use self::inspect::FarInspect;
pub use self::url::BucketUrl;
