//! From the URL to the settings of the driver.

use hapax_core::{Error, Result};
use hapax_net::url::{Credentials, ServerUrl, read_secret};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use super::KafkaUrl;
use super::url::GroupProtocol;
use crate::errors::invalid;

/// At this level the driver tells of connections that end before they can be used.
pub(super) const TELLS_OF_CONNECTIONS: RDKafkaLogLevel = RDKafkaLogLevel::Info;

pub(super) fn config(url: &KafkaUrl) -> Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", url.url.addresses())
        .set("client.id", "hapax")
        .set("group.id", url.group())
        // The thread commits what is done.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // A committed offset that the broker no longer has is an error; the callback sets where a new group starts.
        .set("auto.offset.reset", "error")
        .set("queued.max.messages.kbytes", "8192")
        // A broker answers the requests of a connection in order, and one for messages waits until there are some. So a
        // question about topics waits for it, and so does a partition that has room again.
        .set("fetch.wait.max.ms", "100")
        // How soon the driver looks again whether large messages were taken.
        .set("fetch.queue.backoff.ms", "20")
        // A member that got no partition while a topic was gone finds the next one by a refresh.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("statistics.interval.ms", "2000");
    match url.protocol {
        GroupProtocol::Classic => {
            config
                .set("partition.assignment.strategy", "cooperative-sticky")
                .set("session.timeout.ms", (url.session_timeout * 1000).to_string())
                // The driver demands that it is not shorter.
                .set("max.poll.interval.ms", (url.session_timeout * 1000).max(300_000).to_string())
                .set("heartbeat.interval.ms", (url.session_timeout * 1000 / 5).min(3000).to_string());
        }
        GroupProtocol::Consumer => {
            config.set("group.protocol", "consumer");
        }
    }
    if let Some(member) = url.url.parameter("member") {
        config.set("group.instance.id", member);
    }
    log_in(&url.url, &mut config)?;
    config.set_log_level(TELLS_OF_CONNECTIONS);
    Ok(config)
}

pub(super) fn log_in(url: &ServerUrl, config: &mut ClientConfig) -> Result<()> {
    let Credentials { user, password } = url.credentials()?;
    let uses_tls = url.uses_tls()?;
    let protocol = match (user.is_some(), uses_tls) {
        (false, false) => "plaintext",
        (false, true) => "ssl",
        (true, false) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(user) = user {
        let mechanism = url.parameter("sasl").unwrap_or("plain").to_uppercase();
        config.set("sasl.mechanism", mechanism).set("sasl.username", user);
        config.set("sasl.password", password.unwrap_or_default());
    }
    for (parameter, setting) in
        [("ca", "ssl.ca.location"), ("cert", "ssl.certificate.location"), ("key", "ssl.key.location")]
    {
        if let Some(path) = url.parameter(parameter) {
            config.set(setting, path);
        }
    }
    if let Some(key) = url.parameter("key") {
        read_secret(key)?;
    }
    Ok(())
}

/// The error of a driver that cannot be built. The driver's own text may show the password.
pub(super) fn refused(error: &KafkaError) -> Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    match error {
        KafkaError::ClientConfig(_, why, setting, _) if setting != "sasl.password" => {
            invalid(format!("the Kafka driver refuses the setting {setting}: {why}"))
        }
        KafkaError::ClientCreation(why) => invalid(format!("the Kafka driver refuses its settings: {why}")),
        _ => invalid("the Kafka driver refuses its settings"),
    }
}
