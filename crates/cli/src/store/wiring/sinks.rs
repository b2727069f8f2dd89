//! What a relay publishes to.

mod webhooks;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
#[cfg(feature = "kafka")]
use hapax::brokers::{KafkaSink, KafkaSinkConfig};
#[cfg(feature = "nats")]
use hapax::brokers::{NatsSink, NatsSinkConfig};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;
#[cfg(feature = "sqlite")]
use hapax::stores::{SqliteSink, SqliteSinkConfig};
use hapax_systems::not_built_in;

pub(crate) use webhooks::EndpointSettings;

/// A sink that the configuration names, and the names under which it gets events.
#[derive(Clone, Debug)]
pub(crate) struct EventSink {
    pub(crate) place: SinkPlace,
    /// None: that of the URL.
    pub(crate) template: Option<TopicTemplate>,
}

/// Where events go.
#[derive(Clone, Debug)]
pub(crate) enum SinkPlace {
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaSinkConfig>),
    #[cfg(feature = "nats")]
    Nats(Box<NatsSinkConfig>),
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteSinkConfig>),
    /// The endpoints by their names.
    Webhooks(BTreeMap<String, EndpointSettings>),
}

/// The name of the endpoint of an https:// sink.
pub(crate) const DEFAULT_ENDPOINT: &str = "default";

/// The URLs that `--sink` accepts in this build, for help and errors.
pub(crate) fn sink_schemes() -> String {
    let schemes: &[&str] = &[
        #[cfg(feature = "kafka")]
        "kafka://HOST[/TOPIC]",
        #[cfg(feature = "nats")]
        "nats://HOST[/SUBJECT]",
        #[cfg(feature = "sqlite")]
        "sqlite://PATH[?queue=NAME]",
        "https://HOST/PATH",
    ];
    schemes.join(", ")
}

/// The version of the tables of an SQLite file that has the queues.
#[cfg(feature = "sqlite")]
const SQLITE_QUEUES: i32 = 3;

impl EventSink {
    /// Opens the sink.
    pub(crate) async fn open(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Sink>, hapax::Error> {
        let template = self.template.clone();
        match self.place {
            #[cfg(feature = "kafka")]
            SinkPlace::Kafka(ref config) => {
                let config = template.into_iter().fold((**config).clone(), KafkaSinkConfig::topic);
                Ok(Arc::new(KafkaSink::open(config, runtime).await?))
            }
            #[cfg(feature = "nats")]
            SinkPlace::Nats(ref config) => {
                let config = template.into_iter().fold((**config).clone(), NatsSinkConfig::topic);
                Ok(Arc::new(NatsSink::open(config, runtime).await?))
            }
            #[cfg(feature = "sqlite")]
            SinkPlace::Sqlite(ref config) => {
                let config = template.into_iter().fold((**config).clone(), SqliteSinkConfig::topic);
                Ok(Arc::new(SqliteSink::open(config, runtime)?))
            }
            SinkPlace::Webhooks(ref endpoints) => webhooks::open(endpoints, template.unwrap_or_default(), runtime),
        }
    }
}

impl EventSink {
    /// Refuses a file without queues, which opening the sink would create. Writes nothing.
    ///
    /// # Errors
    /// The error names the file.
    pub(crate) fn refuse_missing_tables(&self) -> Result<(), anyhow::Error> {
        match self.place {
            #[cfg(feature = "sqlite")]
            SinkPlace::Sqlite(ref config) => {
                let path = config.path();
                if !path.exists() {
                    bail!("{} does not exist; name the file of the worker, or run `hapax migrate`", path.display());
                }
                if hapax::stores::SqliteTables::new(path).missing()?.contains(&SQLITE_QUEUES) {
                    bail!("{} has no queues yet; run `hapax migrate --database sqlite://{0}`", path.display());
                }
                Ok(())
            }
            #[cfg(feature = "kafka")]
            SinkPlace::Kafka(_) => Ok(()),
            #[cfg(feature = "nats")]
            SinkPlace::Nats(_) => Ok(()),
            SinkPlace::Webhooks(_) => Ok(()),
        }
    }
}

impl SinkPlace {
    /// The name that its sink has in logs and metrics, known before the sink is open.
    pub(crate) fn name(&self) -> String {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.name(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.name(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.name(),
            Self::Webhooks(_) => hapax::brokers::WebhookSink::NAME.to_owned(),
        }
    }

    /// The names of its endpoints.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &str> + Clone {
        let endpoints = match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => None,
            #[cfg(feature = "nats")]
            Self::Nats(_) => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => None,
            Self::Webhooks(endpoints) => Some(endpoints),
        };
        endpoints.into_iter().flat_map(|endpoints| endpoints.keys().map(String::as_str))
    }

    /// Whether what it publishes is signed with a secret.
    pub(crate) fn is_signed(&self) -> bool {
        matches!(self, Self::Webhooks(_))
    }
}

impl FromStr for SinkPlace {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        let context = || format!("the sink must be a URL: {}", sink_schemes());
        let (scheme, rest) = url.split_once(':').with_context(context)?;
        not_built_in(scheme).map_or(Ok(()), Err)?;
        match scheme {
            #[cfg(feature = "kafka")]
            "kafka" => Ok(Self::Kafka(Box::new(url.parse()?))),
            #[cfg(feature = "nats")]
            "nats" => Ok(Self::Nats(Box::new(url.parse()?))),
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(Self::Sqlite(Box::new(queue(rest)?))),
            "https" => Ok(Self::Webhooks([(DEFAULT_ENDPOINT.into(), EndpointSettings::new(url))].into())),
            "http" => bail!(
                "everybody on the way reads a webhook over http://; write https://, or an endpoint with \
                allow-http = \"on\" in the file"
            ),
            _ if !rest.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric()) => {
                bail!("there is no sink for the scheme {scheme:?}; this build has {}", sink_schemes())
            }
            // It may be a part of a password.
            _ => bail!("the URL does not begin with the scheme of a sink; this build has {}", sink_schemes()),
        }
    }
}

/// Reads the rest of `sqlite://PATH?queue=NAME`.
#[cfg(feature = "sqlite")]
fn queue(rest: &str) -> Result<SqliteSinkConfig, anyhow::Error> {
    const WRITE: &str = "write sqlite://PATH?queue=NAME, sqlite://orders.db?queue=orders for instance";
    let place = rest.strip_prefix("//").context(WRITE)?;
    let (path, queue) = place.split_once('?').map_or((place, None), |(path, query)| (path, Some(query)));
    if path.is_empty() {
        bail!(WRITE);
    }
    let config = SqliteSinkConfig::new(path);
    let Some(query) = queue else { return Ok(config) };
    let name = query.strip_prefix("queue=").filter(|name| !name.contains('&')).context(WRITE)?;
    Ok(config.topic(name.parse()?))
}

#[cfg(all(test, feature = "nats", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_sink() {
        for url in [
            "sqlite://orders.db?queue=orders",
            "sqlite:///var/lib/orders.db",
            "nats://relay:secret@nats.example",
            "https://shop.example/hooks",
        ] {
            url.parse::<SinkPlace>().unwrap();
        }
        for (url, remedy) in [
            ("orders.db", "must be a URL"),
            ("sqlite://?queue=orders", "?queue=NAME"),
            ("sqlite://orders.db?table=orders", "?queue=NAME"),
            ("sqlite://orders.db?queue={other}", "{topic}"),
            ("nats://relay:secret@nats.example/orders?durable=billing", "durable"),
            ("http://shop.example/hooks", "https://"),
            ("amqp://rabbit.example", "there is no sink for the scheme"),
        ] {
            let error = format!("{:#}", url.parse::<SinkPlace>().unwrap_err());
            assert!(error.contains(remedy) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
