//! Databases of Google Cloud Spanner.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::journal::StorePlace;
use hapax::ledger::LedgerRows;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Inspect};
use hapax::stores::{Spanner, SpannerOutbox, SpannerTables, SpannerUrl};

use crate::database::Tables;
use crate::store::{NamedStore, OpenedOutbox, OpenedStore};
use crate::store_table::StoreTable;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    store: Some(Offer { form: URL, read: |url| Ok(Arc::new(url.parse::<SpannerUrl>()?)) }),
    database: Some(URL),
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

    fn tables(&self) -> Option<hapax::Result<Box<dyn Tables>>> {
        Some(SpannerTables::connect(self).map(|tables| Box::new(tables) as _))
    }

    fn outbox(&self, runtime: Arc<dyn Runtime>, _has_notifications: bool) -> Option<hapax::Result<OpenedOutbox>> {
        Some(SpannerOutbox::with(self, runtime).map(OpenedOutbox::new))
    }

    fn table(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Box<dyn StoreTable>>> {
        let store = Spanner::with(self, runtime);
        Some(store.map(|store| Box::new(SpannerTable { url: self.clone(), store }) as _))
    }
}

#[async_trait]
impl Tables for SpannerTables {
    async fn missing(&self) -> hapax::Result<Vec<i32>> {
        self.missing().await
    }

    async fn check(&self) -> hapax::Result<Vec<Finding>> {
        self.check().await
    }

    async fn lack_records(&self) -> hapax::Result<bool> {
        self.lack_records().await
    }

    async fn lack_outbox(&self) -> hapax::Result<bool> {
        self.lack_outbox().await
    }

    /// It has none, and opening them says so.
    async fn lack_dead_letters(&self) -> hapax::Result<bool> {
        Ok(false)
    }

    async fn create(&self) -> hapax::Result<Vec<i32>> {
        self.create().await
    }

    async fn script(&self) -> hapax::Result<String> {
        self.script().await
    }

    fn into_ledger(self: Box<Self>) -> Arc<dyn LedgerRows> {
        Arc::new(*self)
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
