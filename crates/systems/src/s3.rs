//! Answers in a bucket of S3, or of what speaks its protocol.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax::runtime::Runtime;
use hapax::store::Finding;
use hapax::stores::{AnswerBucket, BucketUrl, FarAnswers, FarInspect};

use crate::answers::{NamedAnswers, OpenedAnswers};
use crate::store::OpenedStore;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    answers: Some(Offer { form: "s3://BUCKET/PREFIX", read: |url| Ok(Arc::new(url.parse::<BucketUrl>()?)) }),
    ..Offers::NONE
};

impl NamedAnswers for BucketUrl {
    fn open(&self, kept_for: Option<Duration>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn OpenedAnswers>> {
        let bucket = AnswerBucket::new(self, runtime)?;
        Ok(Arc::new(kept_for.into_iter().fold(bucket, AnswerBucket::kept_for)))
    }
}

#[async_trait]
impl OpenedAnswers for AnswerBucket {
    fn around(
        &self,
        OpenedStore { store, inspect }: OpenedStore,
        inline: usize,
        runtime: Arc<dyn Runtime>,
    ) -> OpenedStore {
        OpenedStore {
            store: Arc::new(FarAnswers::around(store, self.clone(), inline, runtime)),
            inspect: Arc::new(FarInspect::around(inspect, self.clone())),
        }
    }

    async fn check(&self) -> Vec<Finding> {
        self.check().await
    }
}
