use std::fmt;
use std::str::FromStr;

use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::errors::invalid;

/// The URL of a durable consumer of a stream of NATS JetStream.
///
/// ```text
/// nats://[USER:PASSWORD@|TOKEN@]HOST[:4222][,HOST…]/STREAM?durable=NAME
/// ```
///
/// | parameter | |
/// |---|---|
/// | `durable=NAME` | the durable consumer; it is created if it is missing. A consumer with `max_deliver` is refused |
/// | `filter=SUBJECT` | the subjects that a created consumer delivers; all of the stream by default |
/// | `ack-wait=SECONDS` | the lease of a created consumer, 30 by default |
/// | `order=header:NAME` | the header whose value orders messages; by default they have no order. Run only one worker on the durable consumer then: several do not keep the order |
/// | `password-file=PATH`, `token-file=PATH` | a file with the password or the token, instead of one in the URL |
/// | `creds-file=PATH` | a file with the JWT and the seed of a user, as `nsc` writes it |
/// | `nkey-file=PATH` | a file with the seed of an NKey of a user |
/// | `tls=yes` | demands TLS; without it the server decides |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), beside the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
///
/// `Display` and `Debug` hide the password and the token.
///
/// ```
/// use hapax::brokers::NatsUrl;
///
/// let url: NatsUrl = "nats://worker:secret@nats.example/orders?durable=billing".parse()?;
/// assert_eq!(url.to_string(), "nats://worker:***@nats.example:4222/orders?durable=billing");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrl {
    pub(super) url: ServerUrl,
    order_header: Option<String>,
    pub(super) ack_wait: u64,
}

const SHAPE: UrlShape = UrlShape {
    schemes: &["nats"],
    port: 4222,
    what: "a source",
    hosts: HostCount::Several,
    login: Login::NamedUserOrToken,
    needs_path: true,
    example: "nats://HOST/STREAM?durable=NAME, nats://user:password@host:4222/orders?durable=billing for instance",
    parameters: &[
        "durable",
        "filter",
        "ack-wait",
        "order",
        "password-file",
        "token-file",
        "creds-file",
        "nkey-file",
        "tls",
        "ca",
        "cert",
        "key",
    ],
};

/// Names become a part of subjects, where these characters separate words.
const SEPARATORS: &[char] = &['.', '*', '>', ' ', '\t', '/', '\\'];

impl FromStr for NatsUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a stream, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        let durable = url.required("durable")?;
        for (what, name) in [("stream", url.path()), ("durable", durable)] {
            if name.is_empty() || name.contains(SEPARATORS) {
                return Err(invalid(format!(
                    "the name of a {what} is not empty and has no blank, `.`, `*`, `>` or `/`"
                )));
            }
        }
        check_login(&url)?;
        let order_header = url.parameter("order").map(order_header).transpose()?;
        let ack_wait = url.parameter("ack-wait").map_or(Some(30), |seconds| seconds.parse().ok().filter(|&s| s > 0));
        let ack_wait = ack_wait.ok_or_else(|| invalid("the parameter `ack-wait` is a number of seconds, 1 or more"))?;
        Ok(Self { url, order_header, ack_wait })
    }
}

/// # Errors
/// `Invalid` if the URL has two logins, or contradicts itself about TLS.
pub(super) fn check_login(url: &ServerUrl) -> Result<()> {
    url.uses_tls()?;
    let files = ["token-file", "creds-file", "nkey-file"].iter().filter(|name| url.parameter(name).is_some()).count();
    if files + usize::from(url.user().is_some()) > 1 {
        return Err(invalid("the URL has one of: a user or a token, token-file, creds-file, nkey-file"));
    }
    Ok(())
}

/// The name in `header:NAME`.
fn order_header(rule: &str) -> Result<String> {
    let name = rule.strip_prefix("header:").filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| invalid("the order of a NATS stream is `header:NAME`"))
}

impl NatsUrl {
    /// Orders messages by the value of a header: those with the same value are processed one after the other.
    #[must_use]
    pub fn ordered_by_header(mut self, name: &str) -> Self {
        self.order_header = Some(name.to_owned());
        self
    }

    /// The name of the stream.
    pub fn stream(&self) -> &str {
        self.url.path()
    }

    /// The name of the durable consumer.
    pub fn durable(&self) -> &str {
        self.url.parameter("durable").unwrap_or_default()
    }

    pub(super) fn order_header(&self) -> Option<&str> {
        self.order_header.as_deref()
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_durable_or_with_a_wrong_order_is_refused() {
        for text in [
            "nats://a/orders",
            "nats://a/?durable=d",
            "nats://a/a.b?durable=d",
            "nats://a/orders?durable=a*",
            "nats://a/orders?durable=d&order=key",
            "nats://a/orders?durable=d&ack-wait=0",
            "nats://me:secret@a/orders?durable=d&creds-file=f",
            "nats://a/orders?durable=d&token-file=f&nkey-file=f",
        ] {
            assert!(text.parse::<NatsUrl>().is_err(), "{text}");
        }
        let url: NatsUrl = "nats://a/orders?durable=d&order=header:Account".parse().unwrap();
        assert_eq!((url.order_header(), url.stream(), url.durable()), (Some("Account"), "orders", "d"));
        assert_eq!(url.clone().ordered_by_header("Other").order_header(), Some("Other"));
    }
}
