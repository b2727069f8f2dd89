#[cfg(feature = "sqlite")]
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use hapax::broker::Source;
#[cfg(feature = "kafka")]
use hapax::brokers::{KafkaSource, KafkaUrl};
#[cfg(feature = "nats")]
use hapax::brokers::{NatsSource, NatsUrl};
use hapax::runtime::Runtime;
#[cfg(feature = "sqlite")]
use hapax::stores::{SqliteQueue, SqliteSource, SqliteSourceSettings};
use hapax_systems::not_built_in;

/// A parsed URL of a source of messages. A build without sources has no variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceUrl {
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaUrl>),
    #[cfg(feature = "nats")]
    Nats(Box<NatsUrl>),
    #[cfg(feature = "sqlite")]
    Sqlite { path: PathBuf, queue: String },
}

/// The URLs that `--source` accepts in this build, for help and errors.
pub(crate) fn source_schemes() -> String {
    let schemes: &[&str] = &[
        #[cfg(feature = "kafka")]
        "kafka://HOST/TOPIC?group=NAME",
        #[cfg(feature = "nats")]
        "nats://HOST/STREAM?durable=NAME",
        #[cfg(feature = "sqlite")]
        "sqlite://PATH?queue=NAME",
    ];
    schemes.join(", ")
}

impl SourceUrl {
    /// The name of the group of workers that share the messages.
    pub(crate) fn group(&self) -> &str {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref url) => url.group(),
            #[cfg(feature = "nats")]
            Self::Nats(ref url) => url.durable(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite { ref queue, .. } => queue,
        }
    }

    /// Takes the ordering key of a message from this header, where the broker has none of its own.
    ///
    /// # Errors
    /// If the source has ordering keys of its own.
    #[cfg_attr(
        not(any(feature = "nats", feature = "sqlite")),
        expect(unused_variables, reason = "no source has headers")
    )]
    pub(crate) fn ordered_by_header(self, name: &str) -> Result<Self, anyhow::Error> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => bail!("Kafka orders by the key of a record; remove the setting"),
            #[cfg(feature = "nats")]
            Self::Nats(url) => Ok(Self::Nats(Box::new(url.ordered_by_header(name)))),
            #[cfg(feature = "sqlite")]
            Self::Sqlite { .. } => bail!("the queue has a column for ordering keys; remove the setting (not {name})"),
        }
    }

    /// Opens the source. `lease` is how long a delivered message belongs to this worker without an extension, where the
    /// worker may choose.
    #[cfg_attr(
        not(feature = "sqlite"),
        expect(unused_variables, reason = "only the queue of this build lets the worker choose")
    )]
    pub(crate) async fn open(
        &self,
        runtime: Arc<dyn Runtime>,
        lease: Duration,
    ) -> Result<Box<dyn Source>, hapax::Error> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref url) => Ok(Box::new(KafkaSource::connect(url, runtime).await?)),
            #[cfg(feature = "nats")]
            Self::Nats(ref url) => Ok(Box::new(NatsSource::connect(url, runtime).await?)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite { ref path, ref queue } => {
                let (queue, settings) = (SqliteQueue::new(queue)?, SqliteSourceSettings::default().lease(lease));
                Ok(Box::new(SqliteSource::open(path, &queue, runtime, settings)?))
            }
        }
    }
}

impl FromStr for SourceUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        let context = || format!("the source must be a URL: {}", source_schemes());
        let (scheme, rest) = url.split_once(':').with_context(context)?;
        not_built_in(scheme).map_or(Ok(()), Err)?;
        match scheme {
            #[cfg(feature = "kafka")]
            "kafka" => Ok(Self::Kafka(Box::new(url.parse()?))),
            #[cfg(feature = "nats")]
            "nats" => Ok(Self::Nats(Box::new(url.parse()?))),
            #[cfg(feature = "sqlite")]
            "sqlite" => queue(rest),
            _ if !rest.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric()) => {
                bail!("there is no source for the scheme {scheme:?}; this build has {}", source_schemes())
            }
            // It may be a part of a password.
            _ => bail!("the URL does not begin with the scheme of a source; this build has {}", source_schemes()),
        }
    }
}

/// Reads the rest of `sqlite://PATH?queue=NAME`.
#[cfg(feature = "sqlite")]
fn queue(rest: &str) -> Result<SourceUrl, anyhow::Error> {
    const WRITE: &str = "write sqlite://PATH?queue=NAME, sqlite://shop.db?queue=orders for instance";
    let (path, queue) = rest.strip_prefix("//").and_then(|rest| rest.split_once("?queue=")).context(WRITE)?;
    if path.is_empty() || queue.is_empty() || queue.contains('&') {
        bail!(WRITE);
    }
    Ok(SourceUrl::Sqlite { path: path.into(), queue: queue.to_owned() })
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
            ("amqp://rabbit.example", "there is no source for the scheme"),
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
