//! Redis and Valkey.

use std::sync::Arc;

use hapax::broker::DeadLetterStore;
use hapax::journal::StorePlace;
use hapax::runtime::Runtime;
use hapax::stores::{Redis, RedisDeadLetters, RedisUrl};

use crate::store::{NamedStore, OpenedStore};
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    store: Some(Offer {
        form: "redis://HOST, rediss://HOST, unix:///PATH, redis+cluster://HOST[,HOST], \
               redis+sentinel://HOST[,HOST]/MASTER",
        read: |url| Ok(Arc::new(url.parse::<RedisUrl>()?)),
    }),
    dead_letters: Some("redis://HOST, redis+cluster://HOST[,HOST], redis+sentinel://HOST[,HOST]/MASTER"),
    ..Offers::NONE
};

impl NamedStore for RedisUrl {
    fn place(&self) -> StorePlace {
        self.place()
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        Redis::with(self, runtime).map(OpenedStore::new)
    }

    fn dead_letters(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Arc<dyn DeadLetterStore>>> {
        Some(RedisDeadLetters::with(self, runtime).map(|letters| Arc::new(letters) as _))
    }
}
