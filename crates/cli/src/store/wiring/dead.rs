use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use hapax::broker::DeadLetterStore;
use hapax::outbox::TopicTemplate;
use hapax::runtime::Runtime;
use hapax_systems::SinkUrl;

use super::StoreUrl;
use crate::serve::exit::CommandError;

/// The URLs that `hapax dead` accepts, for help and errors.
pub(crate) const SCHEMES: &str = "sqlite://PATH, postgres://HOST/DATABASE or redis://HOST";

/// Where a worker writes its dead letters.
#[derive(Clone, Debug)]
pub(crate) enum DeadLetterPlace {
    /// A store or a database. They come back from there by a redrive.
    Kept(StoreUrl),
    /// A broker, whose consumers read them.
    Published(SinkUrl),
}

impl DeadLetterPlace {
    /// Whether the letters tell which ordering keys they belong to.
    pub(crate) fn can_park(&self) -> bool {
        match self {
            Self::Published(_) | Self::Kept(StoreUrl::Memory) => false,
            #[cfg(feature = "postgres")]
            Self::Kept(StoreUrl::Postgres(_)) => true,
            #[cfg(feature = "redis")]
            Self::Kept(StoreUrl::Redis(_)) => false,
            #[cfg(feature = "sqlite")]
            Self::Kept(StoreUrl::Sqlite(_)) => true,
        }
    }

    /// The same place with another template for the topic. None if the place has no topics.
    pub(crate) fn with_topic(self, template: TopicTemplate) -> Option<Self> {
        match self {
            Self::Kept(_) => None,
            Self::Published(sink) => Some(Self::Published(sink.with_topic(template))),
        }
    }
}

impl FromStr for DeadLetterPlace {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        if !is_at_broker(url) {
            let context =
                || format!("dead letters go to {SCHEMES}, or to kafka://HOST[/TOPIC] or nats://HOST[/SUBJECT]");
            return url.parse().map(Self::Kept).with_context(context);
        }
        url.parse().map(Self::Published)
    }
}

/// Whether the URL is that of a broker to which dead letters are published. It has them only for its own consumers.
pub(crate) fn is_at_broker(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| ["kafka", "nats"].contains(&scheme))
}

/// Opens the dead letters in the store or the database that a URL names, for commands that read them.
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
    #[cfg(feature = "sqlite")]
    if let StoreUrl::Sqlite(path) = url
        && !path.exists()
    {
        // Otherwise a misspelt path would create an empty file.
        let message = anyhow!("{} does not exist; name the file that the worker uses", path.display());
        return Err(CommandError::cannot_start(message));
    }
    create(url, runtime)
}

/// Opens the dead letters, and creates a file that is missing.
#[cfg_attr(
    not(any(feature = "postgres", feature = "redis", feature = "sqlite")),
    expect(unused_variables, reason = "this build has no database")
)]
pub(crate) fn create(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
    match url {
        StoreUrl::Memory => Err(CommandError::usage(anyhow!(
            "memory: keeps no dead letters that another process can read; name {SCHEMES}"
        ))),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let opened = hapax::stores::PostgresDeadLetters::with(url, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let opened = hapax::stores::RedisDeadLetters::with(url, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let opened = hapax::stores::SqliteDeadLetters::with(path, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
    }
}
