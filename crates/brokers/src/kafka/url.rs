use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::errors::invalid;

/// The URL of topics of Kafka for a consumer group.
///
/// ```text
/// kafka://[USER:PASSWORD@]HOST[:9092][,HOST…]/TOPIC[,TOPIC…]?group=GROUP
/// ```
///
/// | parameter | |
/// |---|---|
/// | `group=NAME` | the consumer group |
/// | `start=earliest` | where a group without a committed offset starts, `earliest` by default; `latest` skips what is there as a partition is taken up for the first time, and needs `skip-existing=yes`. Nothing is skipped in a partition that was added after the group had begun; before Kafka 2.8 only a worker that runs meanwhile knows that |
/// | `protocol=classic` | how the group assigns partitions: `classic` with cooperative assignment by default, or `consumer` (KIP-848, Kafka 4.0 or later) |
/// | `member=NAME` | static membership: a name that no other running process of the group has; a restart within the session timeout then moves no partition |
/// | `session-timeout=SECONDS` | when the group takes a silent member for dead, 45 by default; for `protocol=consumer` the broker decides |
/// | `password-file=PATH` | a file with the password, instead of one in the URL |
/// | `sasl=plain` | how the user logs in: `plain` by default, `scram-sha-256` or `scram-sha-512` |
/// | `tls=yes` | TLS |
/// | `ca=PATH` | TLS: the authority that signed the broker's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the broker demands one |
///
/// `Display` and `Debug` hide the password.
///
/// ```
/// use hapax::brokers::KafkaUrl;
///
/// let url: KafkaUrl = "kafka://worker:secret@kafka.example/orders?group=billing".parse()?;
/// assert_eq!(url.to_string(), "kafka://worker:***@kafka.example:9092/orders?group=billing");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaUrl {
    pub(super) url: ServerUrl,
    topics: Vec<String>,
    pub(super) start: Start,
    pub(super) protocol: GroupProtocol,
    /// In seconds.
    pub(super) session_timeout: u64,
}

/// Where a group without a committed offset starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Earliest,
    Latest,
}

/// How the group assigns partitions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupProtocol {
    Classic,
    Consumer,
}

const SHAPE: UrlShape = UrlShape {
    schemes: &["kafka"],
    port: 9092,
    what: "a source",
    hosts: HostCount::Several,
    login: Login::NamedUser,
    needs_path: true,
    example: "kafka://HOST/TOPIC?group=GROUP, kafka://user:password@host:9092/orders?group=billing for instance",
    parameters: &[
        "group",
        "start",
        "skip-existing",
        "protocol",
        "member",
        "session-timeout",
        "password-file",
        "sasl",
        "tls",
        "ca",
        "cert",
        "key",
    ],
};

const SASL: &[&str] = &["plain", "scram-sha-256", "scram-sha-512"];

impl FromStr for KafkaUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of topics, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        url.required("group")?;
        let topics: Vec<String> = url.path().split(',').map(str::to_owned).collect();
        let is_topic = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
        if topics.iter().any(|topic| topic.is_empty() || !topic.chars().all(is_topic)) {
            return Err(invalid("the name of a topic has letters, digits, `.`, `_` and `-`; `,` separates topics"));
        }
        let protocol = match url.parameter("protocol") {
            None | Some("classic") => GroupProtocol::Classic,
            Some("consumer") => GroupProtocol::Consumer,
            Some(_) => return Err(invalid("the parameter `protocol` is classic or consumer")),
        };
        let (start, session_timeout) = (parse_start(&url)?, parse_session_timeout(&url, protocol)?);
        check_login(&url)?;
        Ok(Self { url, topics, start, protocol, session_timeout })
    }
}

fn parse_start(url: &ServerUrl) -> Result<Start> {
    match (url.parameter("start"), url.parameter("skip-existing")) {
        (None | Some("earliest"), None) => Ok(Start::Earliest),
        (Some("latest"), Some("yes")) => Ok(Start::Latest),
        (Some("latest"), _) => Err(invalid(
            "start=latest skips messages that nobody has processed, also after a failed start; if that is meant, add \
             skip-existing=yes",
        )),
        _ => Err(invalid("the parameter `start` is earliest, or latest with skip-existing=yes")),
    }
}

fn parse_session_timeout(url: &ServerUrl, protocol: GroupProtocol) -> Result<u64> {
    let given = url.seconds("session-timeout", 1..=3600)?;
    if given.is_some() && protocol == GroupProtocol::Consumer {
        return Err(invalid("with protocol=consumer the broker sets the session timeout: leave it out"));
    }
    Ok(given.map_or(45, |timeout| timeout.as_secs()))
}

pub(super) fn check_login(url: &ServerUrl) -> Result<()> {
    let uses_tls = url.uses_tls()?;
    let mechanism = url.parameter("sasl").unwrap_or("plain");
    if !SASL.contains(&mechanism) {
        return Err(invalid(format!("the parameter `sasl` is one of {}", SASL.join(", "))));
    }
    if url.parameter("sasl").is_some() && url.user().is_none() {
        return Err(invalid("the parameter `sasl` needs a user in the URL"));
    }
    if url.user().is_some() && !url.has_password() {
        return Err(invalid("the user in the URL needs a password: write USER:PASSWORD@, or add password-file=PATH"));
    }
    if cfg!(not(feature = "kafka-tls")) && (uses_tls || mechanism != "plain") {
        return Err(invalid(
            "this program is built without TLS and SCRAM for Kafka: build it with feature `kafka-tls`",
        ));
    }
    Ok(())
}

impl KafkaUrl {
    /// The names of the topics.
    pub fn topics(&self) -> &[String] {
        &self.topics
    }

    /// The name of the consumer group.
    pub fn group(&self) -> &str {
        self.url.parameter("group").unwrap_or_default()
    }

    /// The name of the source. The order of the topics does not change it: dead letters are found under this name.
    pub(super) fn source_name(&self) -> String {
        let topics: BTreeSet<&str> = self.topics.iter().map(String::as_str).collect();
        let topics: Vec<&str> = topics.into_iter().collect();
        format!("kafka/{}/{}", topics.join(","), self.group())
    }
}

impl fmt::Display for KafkaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for KafkaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KafkaUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_source_does_not_depend_on_the_order_of_its_topics() {
        for topics in ["orders,refunds", "refunds,orders", "refunds,orders,refunds"] {
            let url: KafkaUrl = format!("kafka://a/{topics}?group=g").parse().unwrap();
            assert_eq!(url.source_name(), "kafka/orders,refunds/g", "{topics}");
        }
    }

    #[test]
    fn a_url_names_topics_and_a_group() {
        let url: KafkaUrl = "kafka://a,b:7/orders,re.funds?group=g&member=m".parse().unwrap();
        assert_eq!((url.topics(), url.group()), (&["orders".to_owned(), "re.funds".to_owned()][..], "g"));
        for text in [
            "kafka://a/orders",
            "kafka://a/?group=g",
            "kafka://a/or ders?group=g",
            "kafka://a/orders?group=g&protocol=eager",
            "kafka://a/orders?group=g&protocol=consumer&session-timeout=9",
            "kafka://me:secret@a/orders?group=g&sasl=gssapi",
            "kafka://a/orders?group=g&sasl=plain",
            "kafka://me@a/orders?group=g",
        ] {
            assert!(text.parse::<KafkaUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn latest_is_refused_unless_skipping_is_said_too() {
        let error = "kafka://a/orders?group=g&start=latest".parse::<KafkaUrl>().unwrap_err();
        assert!(error.to_string().contains("skip-existing=yes"), "{error}");
        assert!("kafka://a/orders?group=g&start=latest&skip-existing=yes".parse::<KafkaUrl>().is_ok());
    }
}
