//! Tables of AWS DynamoDB.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::journal::StorePlace;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Inspect};
use hapax::stores::{DynamoDb, DynamoDbUrl};

use crate::store::{NamedStore, OpenedStore};
use crate::store_table::StoreTable;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    store: Some(Offer { form: URL, read: |url| Ok(Arc::new(url.parse::<DynamoDbUrl>()?)) }),
    store_table: Some(URL),
    ..Offers::NONE
};

const URL: &str = "dynamodb://REGION/TABLE";

impl NamedStore for DynamoDbUrl {
    fn place(&self) -> StorePlace {
        self.place()
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        DynamoDb::with(self, runtime).map(OpenedStore::new)
    }

    fn table(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Box<dyn StoreTable>>> {
        let store = DynamoDb::with(self, runtime);
        Some(store.map(|store| Box::new(NamedTable { url: self.clone(), store }) as _))
    }
}

/// A table, and the store in it.
#[derive(Debug)]
struct NamedTable {
    url: DynamoDbUrl,
    store: DynamoDb,
}

#[async_trait]
impl StoreTable for NamedTable {
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
        let (region, table) = (self.url.region(), self.url.table());
        let place = self.url.stand_in().map(|address| format!(" --endpoint-url http://{address}")).unwrap_or_default();
        let command = |name: &str, input: String| format!("aws dynamodb {name} --region {region}{place} {input}\n");
        let missing = self.store.missing_parts().await?;
        let creation = missing.creation.map(|body| {
            let waiting = command("wait table-exists", format!("--table-name {table}"));
            command("create-table", format!("--cli-input-json '{body}'")) + &waiting
        });
        let expiry = missing.expiry.map(|body| command("update-time-to-live", format!("--cli-input-json '{body}'")));
        Ok(creation.into_iter().chain(expiry).collect())
    }
}
