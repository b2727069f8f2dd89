//! Answers in a bucket of Google Cloud Storage, which is used like one of S3.

use std::sync::Arc;

use hapax::stores::BucketUrl;

use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    answers: Some(Offer { form: "gs://BUCKET/PREFIX", read: |url| Ok(Arc::new(url.parse::<BucketUrl>()?)) }),
    ..Offers::NONE
};
