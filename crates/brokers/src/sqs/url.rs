use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, Result};
use hapax_net::url::{Host, HostCount, Login, ServerUrl, UrlShape};

use crate::errors::invalid;

/// The URL of a queue of AWS SQS.
///
/// ```text
/// sqs://REGION/QUEUE
/// sqs+http://HOST[:9324]/QUEUE
/// ```
///
/// The second form is for a stand-in without TLS that checks no credentials. It gets none of AWS. A queue whose name
/// ends with `.fifo` keeps the order of each message group.
///
/// | parameter | |
/// |---|---|
/// | `account=ID` | the account that owns the queue, if it is another one than that of the credentials |
/// | `visibility=SECONDS` | the lease of a message, 30 by default, and 5 at least at AWS |
/// | `wait=SECONDS` | how long the service waits for a message before it answers, 5 by default and 8 at most. A stop may take as long, because a request that is cut off hides the messages in its answer for a whole lease |
/// | `receivers=N` | how many requests ask for messages at once, 2 by default |
/// | `region=NAME` | the region of a stand-in |
///
/// The credentials come from the usual places of AWS, and never from the URL.
///
/// ```
/// use hapax::brokers::SqsUrl;
///
/// let url: SqsUrl = "sqs://eu-west-1/orders.fifo?visibility=60".parse()?;
/// assert!(url.is_fifo());
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SqsUrl {
    pub(super) place: SqsPlace,
    pub(super) visibility: Duration,
    pub(super) wait: Duration,
    pub(super) receivers: usize,
}

/// A region of AWS or a stand-in, with the path and the parameters of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SqsPlace {
    pub(super) url: ServerUrl,
}

/// What the URLs of sources and of sinks do not have in common.
pub(super) struct SqsShape {
    pub(super) what: &'static str,
    pub(super) example: &'static str,
    pub(super) needs_path: bool,
    pub(super) parameters: &'static [&'static str],
}

const SOURCE: SqsShape = SqsShape {
    what: "a queue",
    example: "sqs://REGION/QUEUE, sqs://eu-west-1/orders for instance",
    needs_path: true,
    parameters: &["account", "visibility", "wait", "receivers", "region"],
};

/// The scheme of AWS itself.
const AWS: &str = "sqs";

/// The port of AWS, which `Display` leaves out.
const HTTPS: u16 = 443;

/// The port of ElasticMQ.
const STAND_IN: u16 = 9324;

/// The shortest lease, in seconds. The service counts from before the arrival, perhaps by more than a second.
const LEAST_LEASE: u64 = 5;

/// The longest wait, in seconds. A worker that stops gives its source 10 s, and then cuts off a request.
const LONGEST_WAIT: u64 = 8;

impl SqsPlace {
    /// # Errors
    /// `Invalid` if the text does not have this shape, or has credentials.
    pub(super) fn parse(text: &str, shape: &SqsShape) -> Result<Self> {
        let is_aws = text.trim().split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(AWS));
        let shape = UrlShape {
            schemes: &[AWS, "sqs+http"],
            port: if is_aws { HTTPS } else { STAND_IN },
            what: shape.what,
            example: shape.example,
            hosts: HostCount::Several,
            login: Login::AnyUser,
            needs_path: shape.needs_path,
            parameters: shape.parameters,
        };
        let place = Self { url: shape.parse(text)? };
        if place.url.user().is_some() || place.url.has_password() {
            return Err(invalid("a URL of SQS has no credentials: they come from the usual places of AWS"));
        }
        if place.url.hosts().len() != 1 || is_aws && place.host().port != HTTPS {
            return Err(shape.wrong());
        }
        match (is_aws, place.url.parameter("region")) {
            (true, Some(_)) => Err(invalid("the region of sqs:// is its host; `region` is for a stand-in")),
            (true, None) if !is_region(&place.host().name) => Err(shape.wrong()),
            (true, None) | (false, _) => Ok(place),
        }
    }

    fn host(&self) -> &Host {
        &self.url.hosts()[0]
    }

    /// Whether it is AWS itself, with TLS and credentials.
    pub(super) fn is_aws(&self) -> bool {
        self.url.scheme() == AWS
    }

    pub(super) fn region(&self) -> &str {
        if self.is_aws() { &self.host().name } else { self.url.parameter("region").unwrap_or("elasticmq") }
    }

    /// The URL of the service, without a `/` at its end.
    pub(super) fn endpoint(&self) -> String {
        if !self.is_aws() {
            return format!("http://{}", self.host());
        }
        let region = self.region();
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        format!("https://sqs.{region}.{domain}")
    }

    pub(super) fn account(&self) -> Option<&str> {
        self.url.parameter("account")
    }
}

fn is_region(name: &str) -> bool {
    name.contains('-') && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a queue of this name keeps the order of message groups.
pub(super) fn is_fifo(queue: &str) -> bool {
    queue.ends_with(".fifo")
}

/// What is wrong with the name of a queue.
pub(super) fn check_name(queue: &str) -> Result<(), &'static str> {
    let word = queue.strip_suffix(".fifo").unwrap_or(queue);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if word.is_empty() || queue.len() > 80 || !word.bytes().all(is_plain) {
        return Err("is no name of a queue: up to 80 letters, digits, `-` and `_`, and perhaps `.fifo` at the end");
    }
    Ok(())
}

impl FromStr for SqsUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a queue, or has an unknown parameter or credentials.
    fn from_str(text: &str) -> Result<Self> {
        let place = SqsPlace::parse(text, &SOURCE)?;
        check_name(place.url.path()).map_err(|wrong| invalid(format!("{:?} {wrong}", place.url.path())))?;
        let least = if place.is_aws() { LEAST_LEASE } else { 1 };
        let visibility = place.url.seconds("visibility", least..=43_200)?.unwrap_or(Duration::from_secs(30));
        let wait = place.url.seconds("wait", 0..=LONGEST_WAIT)?.unwrap_or(Duration::from_secs(5));
        let receivers = place.url.number("receivers", 1..=64)?.unwrap_or(2);
        Ok(Self { place, visibility, wait, receivers })
    }
}

impl SqsUrl {
    /// The name of the queue.
    pub fn queue(&self) -> &str {
        self.place.url.path()
    }

    /// Whether the queue keeps the order of its message groups.
    pub fn is_fifo(&self) -> bool {
        is_fifo(self.queue())
    }
}

impl fmt::Display for SqsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.url.to_string();
        f.write_str(&if self.is_aws() { shown.replacen(":443/", "/", 1) } else { shown })
    }
}

impl fmt::Display for SqsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl fmt::Debug for SqsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqsUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_queue_and_a_region_or_a_stand_in() {
        let url: SqsUrl = "sqs://eu-west-1/orders?visibility=60&wait=8&receivers=4".parse().unwrap();
        assert_eq!((url.queue(), url.place.region(), url.is_fifo()), ("orders", "eu-west-1", false));
        assert_eq!(url.place.endpoint(), "https://sqs.eu-west-1.amazonaws.com");
        assert_eq!((url.visibility.as_secs(), url.wait.as_secs(), url.receivers), (60, 8, 4));
        assert_eq!(url.to_string(), "sqs://eu-west-1/orders?receivers=4&visibility=60&wait=8");
        let url: SqsUrl = "sqs://cn-north-1/orders.fifo".parse().unwrap();
        assert_eq!((url.is_fifo(), &*url.place.endpoint()), (true, "https://sqs.cn-north-1.amazonaws.com.cn"));
        let url: SqsUrl = "sqs+http://127.0.0.1/orders?region=here".parse().unwrap();
        assert_eq!((url.place.region(), &*url.place.endpoint()), ("here", "http://127.0.0.1:9324"));
        assert_eq!(url.to_string(), "sqs+http://127.0.0.1:9324/orders?region=here");
    }

    #[test]
    fn a_url_with_credentials_or_a_wrong_name_is_refused() {
        for text in [
            "sqs://AKIA:secret@eu-west-1/orders",
            "sqs+http://me@127.0.0.1/orders",
            "sqs://eu-west-1",
            "sqs://eu-west-1/",
            "sqs://eu-west-1/a/b",
            "sqs://eu-west-1/.fifo",
            "sqs://eu-west-1/orders.txt",
            "sqs://eu-west-1:9324/orders",
            "sqs://eu-west-1,eu-west-2/orders",
            "sqs://EU_WEST/orders",
            "sqs://eu-west-1/orders?region=eu-west-2",
            "sqs://eu-west-1/orders?wait=9",
            "sqs://eu-west-1/orders?visibility=4",
            "sqs://eu-west-1/orders?visibility=43201",
            "sqs://eu-west-1/orders?timeout=3",
        ] {
            let error = text.parse::<SqsUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(check_name(&"q".repeat(80)), Ok(()));
        assert!(check_name(&"q".repeat(81)).is_err());
    }
}
