//! The maintenance of a store with answers in a bucket.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::machine::Observed;
use hapax_core::store::{Chunk, Finding, Inspect, Scan, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result};

use super::AnswerBucket;
use super::far::folder;

/// The maintenance of a store whose large answers lie in a bucket: see [`FarAnswers`](super::FarAnswers).
///
/// A purge removes the answers of the record, too. A sweep does not: the lifecycle rules of the bucket remove the
/// answers of records that have expired.
#[derive(Clone, Debug)]
pub struct FarInspect {
    inspect: Arc<dyn Inspect>,
    bucket: AnswerBucket,
}

impl FarInspect {
    /// The maintenance of the store inside, and of the bucket.
    pub fn around(inspect: Arc<dyn Inspect>, bucket: AnswerBucket) -> Self {
        Self { inspect, bucket }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Inspect for FarInspect {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.inspect.sweep(limit).await
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        self.inspect.scan(ask).await
    }

    /// The answers are listed first: with a bucket that cannot be reached nothing is removed. They are removed last, so
    /// that a record that stays keeps its answer.
    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let names = match &seen.record {
            // A later attempt may write while this runs.
            Some(record) => self.bucket.names_up_to(&folder(&self.bucket, rk), record.token).await?,
            None => Vec::new(),
        };
        let swapped = self.inspect.purge(rk, seen).await?;
        if swapped == Swapped::Changed {
            return Ok(swapped);
        }
        for name in names {
            let left =
                || format!("the record is removed, but its answer {name} is still in the bucket: remove it there");
            let deleted = self.bucket.delete(&name).await;
            deleted.map_err(|error| Error::new(ErrorKind::Unknown, left()).caused_by(error))?;
        }
        Ok(swapped)
    }

    /// Only the store inside: a bucket has a time limit of its own. Its check is [`AnswerBucket::check`].
    async fn check(&self) -> Result<Vec<Finding>> {
        self.inspect.check().await
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        self.inspect.count_unknown().await
    }
}
