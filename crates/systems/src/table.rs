//! The table of the systems, in the order in which help texts list their URLs.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};

use crate::answers::NamedAnswers;
use crate::broker::NamedBroker;
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::store::NamedStore;

/// A system. It has a row also in a build without it.
struct SystemRow {
    /// The name, for errors.
    name: &'static str,
    kind: SystemKind,
    /// The feature that builds it in. None: it is in every build.
    feature: Option<&'static str>,
    /// The schemes of its URLs.
    schemes: &'static [&'static str],
    /// None: it is not in this build.
    offers: Option<&'static Offers>,
}

/// The kind of a system, known also in a build without it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SystemKind {
    /// It only passes messages on. What is published there is for its consumers.
    Broker,
    /// A file of this machine.
    File,
    Server,
    Memory,
    Endpoint,
}

/// The things that URLs of a system may name.
pub(crate) struct Offers {
    pub(crate) source: Option<Offer<dyn NamedSource>>,
    pub(crate) sink: Option<Offer<dyn NamedSink>>,
    pub(crate) store: Option<Offer<dyn NamedStore>>,
    pub(crate) broker: Option<Offer<dyn NamedBroker>>,
    pub(crate) answers: Option<Offer<dyn NamedAnswers>>,
    /// The form of a URL with tables. None: it has no tables.
    pub(crate) database: Option<&'static str>,
    /// The form of a URL of a store that needs a table in a system without SQL. None: it needs none.
    pub(crate) store_table: Option<&'static str>,
    /// The form of a URL with dead letters. None: it keeps none.
    pub(crate) dead_letters: Option<&'static str>,
}

impl Offers {
    pub(crate) const NONE: Self = Self {
        source: None,
        sink: None,
        store: None,
        broker: None,
        answers: None,
        database: None,
        store_table: None,
        dead_letters: None,
    };
}

/// How the URLs of an offer are written, for help and errors, and what reads them.
pub(crate) struct Offer<T: ?Sized> {
    pub(crate) form: &'static str,
    pub(crate) read: fn(&str) -> Result<Arc<T>>,
}

macro_rules! systems {
    ($($name:literal $kind:ident $module:ident $(feature $feature:literal)? schemes $schemes:expr;)*) => {
        const SYSTEMS: &[SystemRow] = &[$({
            systems!(@offers $module $($feature)?);
            SystemRow { name: $name, kind: SystemKind::$kind, feature: FEATURE, schemes: &$schemes, offers: OFFERS }
        }),*];
    };
    (@offers $module:ident) => {
        const FEATURE: Option<&str> = None;
        const OFFERS: Option<&Offers> = Some(&crate::$module::OFFERS);
    };
    (@offers $module:ident $feature:literal) => {
        const FEATURE: Option<&str> = Some($feature);
        #[cfg(feature = $feature)]
        const OFFERS: Option<&Offers> = Some(&crate::$module::OFFERS);
        #[cfg(not(feature = $feature))]
        const OFFERS: Option<&Offers> = None;
    };
}

systems! {
    "Kafka" Broker kafka feature "kafka" schemes ["kafka"];
    "NATS" Broker nats feature "nats" schemes ["nats"];
    "RabbitMQ" Broker rabbitmq feature "rabbitmq" schemes ["amqp", "amqps"];
    "AWS SQS" Broker sqs feature "sqs" schemes ["sqs", "sqs+http"];
    "Google Cloud Pub/Sub" Broker pubsub feature "pubsub" schemes ["pubsub"];
    "AWS S3" Server s3 feature "s3" schemes ["s3"];
    "Google Cloud Storage" Server gcs feature "gcs" schemes ["gs"];
    "SQLite" File sqlite feature "sqlite" schemes ["sqlite"];
    "Redis" Server redis feature "redis" schemes [
        "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel",
    ];
    "PostgreSQL" Server postgres feature "postgres" schemes ["postgres", "postgresql"];
    "AWS DynamoDB" Server dynamodb feature "dynamodb" schemes ["dynamodb"];
    "Google Cloud Spanner" Server spanner feature "spanner" schemes ["spanner"];
    "memory:" Memory memory schemes ["memory"];
    "webhooks" Endpoint webhook schemes ["https", "http"];
}

/// The use of a URL by a setting: as a source, a sink, a store, a broker or a place for answers.
pub(crate) struct UrlRole<T: ?Sized + 'static> {
    /// The name in errors.
    pub(crate) name: &'static str,
    pub(crate) offer: fn(&Offers) -> Option<&Offer<T>>,
}

impl<T: ?Sized> UrlRole<T> {
    /// Reads a URL with this role.
    ///
    /// # Errors
    /// If no system of this build has the role under the scheme, or the URL is not one of that system.
    pub(crate) fn read(&self, url: &str) -> Result<Arc<T>> {
        let (scheme, rest) = url.split_once(':').with_context(|| {
            let (name, forms) = (self.name, self.forms());
            format!("the {name} must be a URL: {forms}")
        })?;
        if let Some(error) = not_built_in(scheme) {
            return Err(error);
        }
        let row = SYSTEMS.iter().find(|row| row.schemes.contains(&scheme));
        if let Some(offer) = row.and_then(|row| row.offers).and_then(self.offer) {
            return (offer.read)(url);
        }
        let (name, forms) = (self.name, self.forms());
        if !rest.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric()) {
            bail!("there is no {name} for the scheme {scheme:?}; this build has {forms}");
        }
        // The scheme may be a part of a password.
        bail!("the URL does not begin with the scheme of a {name}; this build has {forms}")
    }

    /// The URLs with this role in this build, for help and errors.
    pub(crate) fn forms(&self) -> String {
        let offers = SYSTEMS.iter().filter_map(|row| row.offers).filter_map(self.offer);
        offers.map(|offer| offer.form).collect::<Vec<_>>().join(", ")
    }
}

/// The forms of the systems of this build that have one, as a choice.
pub(crate) fn one_of(form: impl Fn(&Offers) -> Option<&'static str>) -> String {
    let forms: Vec<_> = SYSTEMS.iter().filter_map(|row| row.offers).filter_map(form).collect();
    match &forms[..] {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        one_or_none => one_or_none.concat(),
    }
}

/// Whether this is a URL of a broker, also in a build without it.
pub(crate) fn is_broker(url: &str) -> bool {
    has_kind(url, SystemKind::Broker)
}

/// Whether the URL names a file of this machine, also in a build without its system.
pub fn is_file(url: &str) -> bool {
    has_kind(url, SystemKind::File)
}

fn has_kind(url: &str, kind: SystemKind) -> bool {
    let Some((scheme, _)) = url.split_once(':') else { return false };
    SYSTEMS.iter().any(|row| row.kind == kind && row.schemes.contains(&scheme))
}

/// The features of this build that add systems, sorted.
pub fn features() -> impl Iterator<Item = &'static str> {
    let built_in = SYSTEMS.iter().filter(|row| row.offers.is_some());
    let mut features: Vec<_> = built_in.filter_map(|row| row.feature).collect();
    features.sort_unstable();
    features.into_iter()
}

/// The error for a URL whose system is not in this build. None if the system is built in, or if no system has the
/// scheme.
fn not_built_in(scheme: &str) -> Option<anyhow::Error> {
    let row = SYSTEMS.iter().find(|row| row.schemes.contains(&scheme) && row.offers.is_none())?;
    let feature = row.feature.unwrap_or_default();
    Some(anyhow!("this build does not include {}; build it with the feature `{feature}`", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_names_one_system() {
        let mut schemes: Vec<_> = SYSTEMS.iter().flat_map(|row| row.schemes).collect();
        let count = schemes.len();
        schemes.sort_unstable();
        schemes.dedup();
        assert_eq!(schemes.len(), count);
    }

    #[test]
    fn a_build_without_a_system_knows_what_it_is() {
        for url in ["kafka://broker.example", "nats://broker.example/orders", "sqs://eu-west-1/orders"] {
            assert!(is_broker(url) && !is_file(url), "{url}");
        }
        assert!(is_file("sqlite:///var/lib/hapax.db") && !is_broker("sqlite:///var/lib/hapax.db"));
        assert!(!is_file("unix:///run/redis.sock") && !is_broker("kafka"));
    }

    #[test]
    fn a_system_that_is_not_built_in_names_its_feature() {
        let built_in: Vec<_> = features().collect();
        for row in SYSTEMS.iter().filter(|row| row.feature.is_some()) {
            let is_built_in = row.feature.is_some_and(|feature| built_in.contains(&feature));
            for scheme in row.schemes {
                let error = not_built_in(scheme).map(|error| error.to_string());
                assert_eq!(error.is_none(), is_built_in, "{scheme}");
                assert!(error.is_none_or(|error| error.contains(row.feature.unwrap())), "{scheme}");
            }
        }
        assert!(not_built_in("memory").is_none() && not_built_in("gopher").is_none());
    }
}
