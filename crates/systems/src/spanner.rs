//! Databases of Google Cloud Spanner.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::journal::StorePlace;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Inspect};
use hapax::stores::{Spanner, SpannerUrl};

use crate::store::{NamedStore, OpenedStore};
use crate::store_table::StoreTable;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    store: Some(Offer { form: URL, read: |url| Ok(Arc::new(url.parse::<SpannerUrl>()?)) }),
    store_table: Some(URL),
    ..Offers::NONE
};

const URL: &str = "spanner://PROJECT/INSTANCE/DATABASE";

impl NamedStore for SpannerUrl {
    fn place(&self) -> StorePlace {
        self.place()
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        Spanner::with(self, runtime).map(OpenedStore::new)
    }

    fn table(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Box<dyn StoreTable>>> {
        let store = Spanner::with(self, runtime);
        Some(store.map(|store| Box::new(SpannerTable { url: self.clone(), store }) as _))
    }
}

/// The table of the records, and the store in it.
#[derive(Debug)]
struct SpannerTable {
    url: SpannerUrl,
    store: Spanner,
}

#[async_trait]
impl StoreTable for SpannerTable {
    async fn exists(&self) -> hapax::Result<bool> {
        self.store.has_table().await
    }

    async fn check(&self) -> hapax::Result<Vec<Finding>> {
        self.store.check().await
    }

    async fn create(&self) -> hapax::Result<bool> {
        self.store.create_table().await
    }

    async fn commands(&self) -> hapax::Result<String> {
        let (project, instance, database) = (self.url.project(), self.url.instance(), self.url.database());
        let command = |statement: String| {
            format!(
                "gcloud spanner databases ddl update {database} --instance={instance} --project={project} \
                 --ddl='{statement}'\n"
            )
        };
        Ok(self.store.missing_statements().await?.into_iter().map(command).collect())
    }
}
