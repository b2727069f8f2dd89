//! Databases of PostgreSQL.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::broker::DeadLetterStore;
use hapax::journal::StorePlace;
use hapax::ledger::LedgerRows;
use hapax::runtime::Runtime;
use hapax::store::Finding;
use hapax::stores::{Postgres, PostgresDeadLetters, PostgresOutbox, PostgresTables, PostgresUrl};

use crate::database::Tables;
use crate::store::{NamedStore, OpenedOutbox, OpenedStore};
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    store: Some(Offer { form: URL, read: |url| Ok(Arc::new(url.parse::<PostgresUrl>()?)) }),
    database: Some("postgres://HOST/DATABASE[?schema=NAME]"),
    dead_letters: Some(URL),
    ..Offers::NONE
};

/// The version that has the table of dead letters.
const DEAD_LETTERS: i32 = 3;

const URL: &str = "postgres://HOST/DATABASE";

impl NamedStore for PostgresUrl {
    fn place(&self) -> StorePlace {
        self.place()
    }

    fn unchanged(&self) -> Option<Arc<dyn NamedStore>> {
        Some(Arc::new(self.clone().without_migrations()))
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        Postgres::with(self, runtime).map(OpenedStore::new)
    }

    fn tables(&self) -> Option<hapax::Result<Box<dyn Tables>>> {
        Some(PostgresTables::connect(self).map(|tables| Box::new(tables) as _))
    }

    fn outbox(&self, runtime: Arc<dyn Runtime>, has_notifications: bool) -> Option<hapax::Result<OpenedOutbox>> {
        let opened = PostgresOutbox::with(self, runtime);
        let opened = opened.map(|outbox| if has_notifications { outbox } else { outbox.without_notifications() });
        Some(opened.map(OpenedOutbox::new))
    }

    fn dead_letters(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Arc<dyn DeadLetterStore>>> {
        Some(PostgresDeadLetters::with(self, runtime).map(|letters| Arc::new(letters) as _))
    }

    fn can_park(&self) -> bool {
        true
    }
}

#[async_trait]
impl Tables for PostgresTables {
    async fn missing(&self) -> hapax::Result<Vec<i32>> {
        self.missing().await
    }

    async fn check(&self) -> hapax::Result<Vec<Finding>> {
        self.check().await
    }

    async fn lack_outbox(&self) -> hapax::Result<bool> {
        Ok(!self.missing().await?.is_empty())
    }

    async fn lack_dead_letters(&self) -> hapax::Result<bool> {
        Ok(self.missing().await?.contains(&DEAD_LETTERS))
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
