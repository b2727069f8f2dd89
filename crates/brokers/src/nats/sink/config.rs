use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;
use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::nats::url::check_login;
use crate::sinks;

/// Where and how a [`NatsSink`](super::NatsSink) publishes. Read from a URL:
///
/// ```text
/// nats://[USER:PASSWORD@|TOKEN@]HOST[:4222][,HOST…][/SUBJECT]
/// ```
///
/// The subject is a [`TopicTemplate`], `{topic}` by default.
///
/// | parameter | |
/// |---|---|
/// | `timeout=SECONDS` | how long a publication waits for its confirmation, 30 by default |
/// | `password-file=PATH`, `token-file=PATH`, `creds-file=PATH`, `nkey-file=PATH` | as in [`NatsUrl`](crate::NatsUrl) |
/// | `tls=yes`, `ca=PATH`, `cert=PATH`, `key=PATH` | as in [`NatsUrl`](crate::NatsUrl) |
///
/// `Display` and `Debug` hide the password and the token.
///
/// ```
/// use hapax::brokers::NatsSinkConfig;
///
/// let config: NatsSinkConfig = "nats://relay:secret@nats.example/orders.{topic}".parse()?;
/// assert_eq!(config.to_string(), "nats://relay:***@nats.example:4222/orders.{topic}");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NatsSinkConfig {
    pub(super) url: ServerUrl,
    pub(super) topic: TopicTemplate,
    pub(super) timeout: Duration,
}

const SHAPE: UrlShape = UrlShape {
    schemes: &["nats"],
    port: 4222,
    what: "a sink",
    example: "nats://HOST or nats://HOST/SUBJECT, nats://user:password@host:4222/orders.{topic} for instance",
    hosts: HostCount::Several,
    login: Login::NamedUserOrToken,
    needs_path: false,
    parameters: &["timeout", "password-file", "token-file", "creds-file", "nkey-file", "tls", "ca", "cert", "key"],
};

impl FromStr for NatsSinkConfig {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a server, or has an unknown parameter or a wrong template.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        check_login(&url)?;
        let (topic, timeout) = sinks::parameters(&url)?;
        Ok(Self { url, topic, timeout })
    }
}

impl NatsSinkConfig {
    /// Maps topics to subjects by another template than that of the URL.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.topic = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("nats/{}", self.url.addresses())
    }

    /// How long a publication waits for its confirmation.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Display for NatsSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for NatsSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsSinkConfig({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_sink_needs_no_path_and_takes_a_template() {
        let config = |text: &str| text.parse::<NatsSinkConfig>();
        let plain = config("nats://a,b:7?timeout=5").unwrap();
        assert_eq!((plain.topic.to_string().as_str(), plain.timeout), ("{topic}", Duration::from_secs(5)));
        assert_eq!(config("nats://a/").unwrap().topic, TopicTemplate::default());
        assert_eq!(config("nats://me:secret@a/orders.{topic}").unwrap().topic.to_string(), "orders.{topic}");
        for text in ["nats://", "nats://a/{other}", "nats://a?timeout=0", "nats://a/x?durable=d", "kafka://a"] {
            let error = config(text).unwrap_err().to_string();
            assert!(!error.contains("a source"), "{text}: {error}");
        }
    }
}
