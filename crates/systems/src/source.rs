use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::runtime::Runtime;
use hapax::worker::KeyRule;

use crate::table::UrlRole;
use crate::watch::WatchedFile;

/// A source of messages that a URL names. It is not open.
#[async_trait]
pub(crate) trait NamedSource: fmt::Debug + Send + Sync {
    /// The name of the group of workers that share the messages.
    fn group(&self) -> &str;

    /// As [`SourceUrl::ordered_by_header`].
    fn ordered_by_header(&self, name: &str) -> Result<Arc<dyn NamedSource>>;

    /// As [`SourceUrl::refuse_parking`].
    fn refuse_parking(&self) -> Result<()> {
        Ok(())
    }

    /// As [`SourceUrl::refuse_key`].
    fn refuse_key(&self, _rule: &KeyRule) -> Result<()> {
        Ok(())
    }

    /// As [`SourceUrl::open`].
    async fn open(&self, runtime: Arc<dyn Runtime>, lease: Duration) -> hapax::Result<Box<dyn Source>>;

    /// The file of the open source, if it has one.
    fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        Ok(None)
    }
}

/// A parsed URL of a source of messages.
#[derive(Clone, Debug)]
pub struct SourceUrl(Arc<dyn NamedSource>);

const ROLE: UrlRole<dyn NamedSource> = UrlRole { name: "source", offer: |offers| offers.source.as_ref() };

impl SourceUrl {
    /// The URLs of sources in this build, for help and errors.
    pub fn forms() -> String {
        ROLE.forms()
    }

    /// The name of the group of workers that share the messages.
    pub fn group(&self) -> &str {
        self.0.group()
    }

    /// The same source, which takes the ordering key of a message from this header.
    ///
    /// # Errors
    /// If the source has ordering keys of its own.
    pub fn ordered_by_header(&self, name: &str) -> Result<Self> {
        self.0.ordered_by_header(name).map(Self)
    }

    /// Refuses a worker that holds the later messages of an ordering key after a dead letter.
    ///
    /// # Errors
    /// The error says why the source does not allow it.
    pub fn refuse_parking(&self) -> Result<()> {
        self.0.refuse_parking()
    }

    /// Refuses a rule under which no message of the source has a key.
    ///
    /// # Errors
    /// The error says what the messages lack.
    pub fn refuse_key(&self, rule: &KeyRule) -> Result<()> {
        self.0.refuse_key(rule)
    }

    /// Opens the source. `lease` is how long a delivered message belongs to this worker without an extension, where the
    /// worker may choose.
    ///
    /// # Errors
    /// As the source says.
    pub async fn open(&self, runtime: Arc<dyn Runtime>, lease: Duration) -> hapax::Result<Box<dyn Source>> {
        self.0.open(runtime, lease).await
    }

    /// The file of the open source, if it has one.
    ///
    /// # Errors
    /// If the file cannot be found.
    pub fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        self.0.watch()
    }
}

impl FromStr for SourceUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        ROLE.read(url).map(Self)
    }
}

#[cfg(all(test, feature = "nats", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_source_and_its_group() {
        for (url, group) in [
            ("sqlite://shop.db?queue=orders", "orders"),
            ("sqlite:///var/lib/shop.db?queue=orders", "orders"),
            ("nats://worker:secret@nats.example/orders?durable=billing", "billing"),
        ] {
            assert_eq!(url.parse::<SourceUrl>().unwrap().group(), group, "{url}");
        }
        for (url, remedy) in [
            ("shop.db", "must be a URL"),
            ("sqlite://shop.db", "?queue=NAME"),
            ("sqlite://?queue=orders", "?queue=NAME"),
            ("sqlite://shop.db?queue=", "?queue=NAME"),
            ("nats://worker:secret@nats.example/orders", "durable"),
            ("gopher://broker.example", "there is no source for the scheme"),
        ] {
            let error = format!("{:#}", url.parse::<SourceUrl>().unwrap_err());
            assert!(error.contains(remedy) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn only_a_source_without_ordering_keys_takes_them_from_a_header() {
        let ordered = |url: &str| url.parse::<SourceUrl>().unwrap().ordered_by_header("account");
        ordered("nats://nats.example/orders?durable=billing").unwrap();
        ordered("sqlite://shop.db?queue=orders").unwrap_err();
    }
}
