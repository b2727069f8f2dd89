use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, Result};
use hapax_net::url::{Host, HostCount, Login, ServerUrl, UrlShape, is_endpoint};

use crate::errors::invalid;

/// The URL of a subscription of Google Cloud Pub/Sub.
///
/// ```text
/// pubsub://PROJECT/SUBSCRIPTION
/// pubsub://PROJECT/SUBSCRIPTION?endpoint=http://HOST:PORT
/// ```
///
/// | parameter | |
/// |---|---|
/// | `deadline=SECONDS` | the lease of a message, 60 by default, from 10 to 600 |
/// | `endpoint=URL` | another address of the service: `https://` for a region, such as `https://europe-west1-pubsub.googleapis.com`; `http://` for an emulator, which gets no credentials |
/// | `plain=yes` | allows an emulator on another host. Messages then go over the network in plain text |
///
/// The credentials are the Application Default Credentials, and never in the URL.
///
/// ```
/// use hapax::brokers::PubSubUrl;
///
/// let url: PubSubUrl = "pubsub://shop-4711/orders?deadline=30".parse()?;
/// assert_eq!((url.project(), url.subscription()), ("shop-4711", "orders"));
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PubSubUrl {
    pub(super) place: PubSubPlace,
    pub(super) deadline: Duration,
}

/// A project, with the path and the parameters of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PubSubPlace {
    pub(super) url: ServerUrl,
}

/// The address of the service.
const GOOGLE: &str = "https://pubsub.googleapis.com";

/// The port of the service, which `Display` leaves out.
const HTTPS: u16 = 443;

const SOURCE: UrlShape = UrlShape {
    schemes: &["pubsub"],
    port: HTTPS,
    what: "a subscription",
    example: "pubsub://PROJECT/SUBSCRIPTION, pubsub://shop-4711/orders for instance",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: true,
    parameters: &["deadline", "endpoint", "plain"],
};

/// The longest lease, in seconds, and the longest delay of a message.
pub(super) const LONGEST_DEADLINE: u64 = 600;

impl PubSubPlace {
    /// # Errors
    /// `Invalid` if the text does not have this shape, or has credentials.
    pub(super) fn parse(text: &str, shape: &UrlShape) -> Result<Self> {
        let url = shape.parse(text)?;
        if url.user().is_some() || url.has_password() {
            return Err(invalid("a URL of Pub/Sub has no credentials: they are the Application Default Credentials"));
        }
        let [project] = url.hosts() else { return Err(shape.wrong()) };
        if project.port != HTTPS {
            return Err(shape.wrong());
        }
        if let Some(endpoint) = url.parameter("endpoint").filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(invalid(format!("the endpoint is http://HOST:PORT or https://HOST, not `{endpoint}`")));
        }
        let place = Self { url };
        place.check_plain()?;
        Ok(place)
    }

    /// Refuses an emulator on another host, unless the URL allows it.
    fn check_plain(&self) -> Result<()> {
        let is_allowed = match self.url.parameter("plain") {
            None => false,
            Some("yes") => true,
            Some(other) => return Err(invalid(format!("plain is `yes` or left out, not `{other}`"))),
        };
        let Some(address) = self.endpoint().strip_prefix("http://") else { return Ok(()) };
        let host = address.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(address, |(host, _)| host);
        let host = Host { name: host.trim_matches(['[', ']']).to_owned(), port: HTTPS };
        if is_allowed || host.is_loopback() {
            return Ok(());
        }
        Err(invalid(format!(
            "the endpoint `{address}` has no TLS and is not on this host: use https, or allow it with plain=yes"
        )))
    }

    pub(super) fn project(&self) -> &str {
        &self.url.hosts()[0].name
    }

    /// The address of the service, without a `/` at its end.
    pub(super) fn endpoint(&self) -> &str {
        self.url.parameter("endpoint").unwrap_or(GOOGLE).trim_end_matches('/')
    }

    /// Whether it is Google itself, with TLS and credentials.
    pub(super) fn is_google(&self) -> bool {
        self.endpoint().starts_with("https://")
    }
}

/// The fault in the name of a topic or a subscription.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+%".contains(&byte);
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let is_reserved = name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("goog"));
    if !(3..=255).contains(&name.len()) || !name.bytes().all(is_plain) || !begins_well || is_reserved {
        return Err(
            "is no name of Pub/Sub: 3 to 255 letters, digits, `-`, `_`, `.`, `~`, `+` and `%`, a letter first, \
                    and not beginning with `goog`",
        );
    }
    Ok(())
}

impl FromStr for PubSubUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a subscription, or has an unknown parameter or credentials.
    fn from_str(text: &str) -> Result<Self> {
        let place = PubSubPlace::parse(text, &SOURCE)?;
        // A `%` of a name is written as %25, as in every URL.
        check_name(place.url.path()).map_err(|wrong| invalid(format!("{:?} {wrong}", place.url.path())))?;
        let deadline = place.url.seconds("deadline", 10..=LONGEST_DEADLINE)?.unwrap_or(Duration::from_secs(60));
        Ok(Self { place, deadline })
    }
}

impl PubSubUrl {
    /// The project.
    pub fn project(&self) -> &str {
        self.place.project()
    }

    /// The name of the subscription, without the project.
    pub fn subscription(&self) -> &str {
        self.place.url.path()
    }
}

impl fmt::Display for PubSubPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url.to_string().replacen(":443/", "/", 1))
    }
}

impl fmt::Display for PubSubUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl fmt::Debug for PubSubUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PubSubUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_subscription_and_perhaps_a_region_or_an_emulator() {
        let url: PubSubUrl = "pubsub://shop-4711/orders?deadline=30".parse().unwrap();
        assert_eq!((url.project(), url.subscription(), url.deadline.as_secs()), ("shop-4711", "orders", 30));
        assert_eq!((url.place.endpoint(), url.place.is_google()), (GOOGLE, true));
        assert_eq!(url.to_string(), "pubsub://shop-4711/orders?deadline=30");
        let region: PubSubUrl =
            "pubsub://shop-4711/orders?endpoint=https://europe-west1-pubsub.googleapis.com/".parse().unwrap();
        assert_eq!(region.place.endpoint(), "https://europe-west1-pubsub.googleapis.com");
        assert!(region.place.is_google());
        let emulator: PubSubUrl = "pubsub://p/orders?endpoint=http://127.0.0.1:8085".parse().unwrap();
        assert_eq!((emulator.place.endpoint(), emulator.place.is_google()), ("http://127.0.0.1:8085", false));
        for endpoint in
            ["http://localhost:1", "http://[::1]:1", "http://[::1]", "http://127.0.0.2", "http://a:1&plain=yes"]
        {
            let url: PubSubUrl = format!("pubsub://p/orders?endpoint={endpoint}").parse().unwrap();
            assert!(!url.place.is_google(), "{endpoint}");
        }
        for endpoint in ["http://emulator:8085", "http://10.0.0.1:8085", "http://[fe80::1]:1", "http://a&plain=no"] {
            let error = format!("pubsub://p/orders?endpoint={endpoint}").parse::<PubSubUrl>().unwrap_err().to_string();
            assert!(error.contains("plain"), "{endpoint}: {error}");
        }
    }

    #[test]
    fn a_url_with_credentials_or_a_wrong_name_is_refused() {
        for text in [
            "pubsub://me:secret@shop/orders",
            "pubsub://shop",
            "pubsub://shop/",
            "pubsub://shop/or",
            "pubsub://shop/4orders",
            "pubsub://shop/Google-orders",
            "pubsub://shop/orders/paid",
            "pubsub://shop:8085/orders",
            "pubsub://shop,other/orders",
            "pubsub://shop/orders?deadline=9",
            "pubsub://shop/orders?deadline=601",
            "pubsub://shop/orders?endpoint=127.0.0.1:8085",
            "pubsub://shop/orders?endpoint=http://a/b",
            "pubsub://shop/orders?timeout=3",
        ] {
            let error = text.parse::<PubSubUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(check_name(&"q".repeat(255)), Ok(()));
        assert!(check_name(&"q".repeat(256)).is_err());
    }
}
