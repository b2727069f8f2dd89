use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::errors::invalid;

/// The URL of a queue of RabbitMQ.
///
/// ```text
/// amqp://[USER:PASSWORD@]HOST[:5672][,HOST…][/VHOST]?queue=NAME       amqps:// is the same over TLS, at port 5671
/// ```
///
/// Without a user it is `guest`; without a virtual host it is `/`, which is also written as `%2F`.
///
/// | parameter | |
/// |---|---|
/// | `queue=NAME` | the queue, classic or quorum. It must exist. Streams are refused |
/// | `order=routing-key`, `order=header:NAME` | messages with the same routing key, or the same value of this header, are processed one after the other; by default they have no order. Several workers keep it only on a queue with `x-single-active-consumer` |
/// | `prefetch=COUNT` | as many messages the broker sends in advance, 1 to 65535; 256 by default: as many as the worker ends well within `consumer-timeout` |
/// | `consumer-timeout=SECONDS` | how long the broker lets a message be unacknowledged, 1800 by default, as of the broker |
/// | `delivery-limit=COUNT` | after so many deliveries a quorum queue drops a message, 20 by default, as of the broker; 0 if it never does |
/// | `heartbeat=SECONDS` | a connection that is silent for twice this time is lost, 30 by default |
/// | `password-file=PATH` | a file with the password, instead of one in the URL |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
///
/// The broker does not tell its `consumer_timeout`, nor the limit of a queue: write them here if they are not those of
/// the broker's defaults.
///
/// `Display` and `Debug` hide the password.
///
/// ```
/// use hapax::brokers::RabbitMqUrl;
///
/// let url: RabbitMqUrl = "amqp://worker:secret@mq.example/shop?queue=orders".parse()?;
/// assert_eq!(url.to_string(), "amqp://worker:***@mq.example:5672/shop?queue=orders");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RabbitMqUrl {
    pub(super) url: ServerUrl,
    pub(super) order: MessageOrder,
    pub(super) prefetch: Option<u16>,
    pub(super) consumer_timeout: Duration,
    /// None: the queue drops nothing.
    pub(super) delivery_limit: Option<u32>,
}

/// What orders messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageOrder {
    None,
    RoutingKey,
    Header(String),
}

/// As long as the short strings of AMQP: names of queues, exchanges and headers, and routing keys.
pub(super) const SHORT: usize = 255;

const SOURCE: &[&str] = &[
    "queue",
    "order",
    "prefetch",
    "consumer-timeout",
    "delivery-limit",
    "heartbeat",
    "password-file",
    "ca",
    "cert",
    "key",
];

/// What a URL is for.
#[derive(Clone, Copy)]
pub(super) struct UrlUse {
    pub(super) what: &'static str,
    pub(super) example: &'static str,
    pub(super) parameters: &'static [&'static str],
}

const QUEUE: UrlUse = UrlUse {
    what: "a source",
    example: "amqp://HOST/VHOST?queue=NAME, amqp://user:password@host:5672/shop?queue=orders for instance",
    parameters: SOURCE,
};

impl UrlUse {
    /// # Errors
    /// `Invalid` if the text is not such a URL.
    pub(super) fn parse(self, text: &str) -> Result<ServerUrl> {
        let is_tls = text.trim_start().get(..6).is_some_and(|start| start.eq_ignore_ascii_case("amqps:"));
        let shape = UrlShape {
            schemes: &["amqp", "amqps"],
            port: if is_tls { 5671 } else { 5672 },
            what: self.what,
            example: self.example,
            hosts: HostCount::Several,
            login: Login::NamedUser,
            needs_path: false,
            parameters: self.parameters,
        };
        let url = shape.parse(text)?;
        if !is_tls && url.has_tls_files() {
            return Err(invalid("ca, cert and key are for TLS: the URL begins with amqps://"));
        }
        if virtual_host(&url).len() > SHORT {
            return Err(invalid("the name of a virtual host has at most 255 bytes"));
        }
        heartbeat(&url)?;
        Ok(url)
    }
}

/// The virtual host.
pub(super) fn virtual_host(url: &ServerUrl) -> &str {
    if url.path().is_empty() { "/" } else { url.path() }
}

pub(super) fn heartbeat(url: &ServerUrl) -> Result<u16> {
    Ok(url.number("heartbeat", 1..=3600)?.unwrap_or(30))
}

impl FromStr for RabbitMqUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a queue, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        let url = QUEUE.parse(text)?;
        if url.required("queue")?.len() > SHORT {
            return Err(invalid("the name of a queue has at most 255 bytes"));
        }
        let order = order(url.parameter("order"))?;
        let prefetch = url.number("prefetch", 1..=u16::MAX)?;
        let consumer_timeout = url.seconds("consumer-timeout", 1..=31_536_000)?.unwrap_or(Duration::from_secs(1800));
        let delivery_limit = url.number("delivery-limit", 0..=u32::MAX)?.unwrap_or(20);
        if (1..=4).contains(&delivery_limit) {
            return Err(invalid(
                "the parameter `delivery-limit` is 0 or at least 5: the worker needs the last ones, and each restart \
                 spends one",
            ));
        }
        let delivery_limit = Some(delivery_limit).filter(|limit| *limit > 0);
        Ok(Self { url, order, prefetch, consumer_timeout, delivery_limit })
    }
}

fn order(rule: Option<&str>) -> Result<MessageOrder> {
    match rule.map(|rule| rule.strip_prefix("header:").ok_or(rule)) {
        None => Ok(MessageOrder::None),
        Some(Ok(name)) if !name.is_empty() => Ok(MessageOrder::Header(name.to_owned())),
        Some(Err("routing-key")) => Ok(MessageOrder::RoutingKey),
        Some(_) => Err(invalid("the order of a queue is `routing-key` or `header:NAME`")),
    }
}

impl RabbitMqUrl {
    /// Orders messages by the value of a header: those with the same value are processed one after the other.
    #[must_use]
    pub fn ordered_by_header(mut self, name: &str) -> Self {
        self.order = MessageOrder::Header(name.to_owned());
        self
    }

    /// The name of the queue.
    pub fn queue(&self) -> &str {
        self.url.parameter("queue").unwrap_or_default()
    }

    /// The virtual host.
    pub fn virtual_host(&self) -> &str {
        virtual_host(&self.url)
    }
}

impl fmt::Display for RabbitMqUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for RabbitMqUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RabbitMqUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_queue_or_with_a_wrong_parameter_is_refused() {
        let long = format!("amqp://a?queue={}", "q".repeat(256));
        for text in [
            "amqp://a",
            "amqp://a/shop",
            "amqp://a?queue=q&order=key",
            "amqp://a?queue=q&order=header:",
            "amqp://a?queue=q&prefetch=0",
            "amqp://a?queue=q&heartbeat=0",
            "amqp://a?queue=q&delivery-limit=4",
            "amqp://a?queue=q&ca=/ca.pem",
            "nats://a?queue=q",
            &long,
        ] {
            assert!(text.parse::<RabbitMqUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_url_leaves_out_is_the_default_of_the_broker() {
        let url: RabbitMqUrl = "amqp://a,b:7?queue=q".parse().unwrap();
        assert_eq!((url.virtual_host(), url.queue(), &url.order), ("/", "q", &MessageOrder::None));
        assert_eq!((url.consumer_timeout, url.delivery_limit), (Duration::from_secs(1800), Some(20)));
        assert_eq!(url.to_string(), "amqp://a:5672,b:7/?queue=q");
        let url: RabbitMqUrl = "amqps://a/%2Fown?queue=q&order=header:Account&delivery-limit=0".parse().unwrap();
        assert_eq!((url.virtual_host(), url.delivery_limit), ("/own", None));
        assert_eq!((url.order.clone(), url.url.hosts()[0].port), (MessageOrder::Header("Account".into()), 5671));
        assert_eq!(url.ordered_by_header("Other").order, MessageOrder::Header("Other".into()));
    }
}
