//! The URL of a table.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, Result};
use hapax_net::http::AnswerLimits;
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape, is_endpoint};

use crate::errors::invalid;

/// The URL of a table of AWS DynamoDB.
///
/// ```text
/// dynamodb://REGION/TABLE
/// dynamodb://REGION/TABLE?endpoint=http://HOST:PORT
/// ```
///
/// | parameter | |
/// |---|---|
/// | `endpoint=URL` | another address of the service: `https://` for an endpoint of AWS in a private network, `http://` for a stand-in without TLS, which gets no credentials of AWS |
/// | `timeout=SECONDS` | how long the service may take until its answer begins, 2 by default and 60 at most. The rest of the answer may take a second longer |
///
/// The credentials come from the usual places of AWS, and never from the URL.
///
/// ```
/// use hapax::stores::DynamoDbUrl;
///
/// let url: DynamoDbUrl = "dynamodb://eu-west-1/payments".parse()?;
/// assert_eq!((url.region(), url.table()), ("eu-west-1", "payments"));
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DynamoDbUrl {
    url: ServerUrl,
    timeout: Duration,
}

/// How long an answer may take by default. The engine gives up earlier. The task of a call waits for its end, so that
/// no later call for the key overtakes it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The port of AWS, which `Display` leaves out.
const HTTPS: u16 = 443;

const SHAPE: UrlShape = UrlShape {
    schemes: &["dynamodb"],
    port: HTTPS,
    what: "a table of DynamoDB",
    example: "dynamodb://REGION/TABLE, dynamodb://eu-west-1/payments for instance",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: true,
    parameters: &["endpoint", "timeout"],
};

impl FromStr for DynamoDbUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a table, or has an unknown parameter or credentials.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        if url.user().is_some() || url.has_password() {
            return Err(invalid("a URL of DynamoDB has no credentials: they come from the usual places of AWS"));
        }
        let [region] = url.hosts() else { return Err(SHAPE.wrong()) };
        if region.port != HTTPS || !is_region(&region.name) {
            return Err(SHAPE.wrong());
        }
        if !is_table(url.path()) {
            let table = url.path();
            return Err(invalid(format!(
                "{table:?} is no name of a table: 3 to 255 letters, digits, `-`, `_` and `.`"
            )));
        }
        if let Some(endpoint) = url.parameter("endpoint").filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(invalid(format!("the endpoint is http://HOST:PORT or https://HOST, not `{endpoint}`")));
        }
        let timeout = url.seconds("timeout", 1..=60)?.unwrap_or(TIMEOUT);
        Ok(Self { url, timeout })
    }
}

impl DynamoDbUrl {
    /// The region of AWS.
    pub fn region(&self) -> &str {
        &self.url.hosts()[0].name
    }

    /// The name of the table.
    pub fn table(&self) -> &str {
        self.url.path()
    }

    /// The place of the records: region and table, and the address of a stand-in.
    pub fn place(&self) -> StorePlace {
        let (region, table) = (self.region(), self.table());
        StorePlace::new(match self.stand_in() {
            Some(address) => format!("dynamodb://{address}/{region}/{table}"),
            None => format!("dynamodb://{region}/{table}"),
        })
    }

    /// How long an answer may take until it begins, and its body.
    pub(super) fn limits(&self) -> AnswerLimits {
        AnswerLimits { head: self.timeout, body: self.timeout + Duration::from_secs(1) }
    }

    /// A call of two requests ends within this time.
    pub(super) fn longest_call(&self) -> Duration {
        let AnswerLimits { head, body } = self.limits();
        (head + body) * 3
    }

    /// The address of the service, without a `/` at its end.
    pub(super) fn endpoint(&self) -> String {
        if let Some(endpoint) = self.url.parameter("endpoint") {
            return endpoint.trim_end_matches('/').to_owned();
        }
        let region = self.region();
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        format!("https://dynamodb.{region}.{domain}")
    }

    /// Whether it is AWS itself, with TLS and credentials.
    pub(super) fn is_aws(&self) -> bool {
        self.stand_in().is_none()
    }

    /// The host and port of a stand-in that has no TLS. None for AWS.
    pub fn stand_in(&self) -> Option<&str> {
        let endpoint = self.url.parameter("endpoint")?.strip_prefix("http://")?;
        Some(endpoint.trim_end_matches('/'))
    }
}

fn is_region(name: &str) -> bool {
    name.contains('-') && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_table(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (3..=255).contains(&name.len()) && name.bytes().all(is_plain)
}

impl fmt::Display for DynamoDbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url.to_string().replacen(":443/", "/", 1))
    }
}

impl fmt::Debug for DynamoDbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamoDbUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_table_and_a_region_and_perhaps_a_stand_in() {
        let url: DynamoDbUrl = "dynamodb://eu-west-1/payments".parse().unwrap();
        assert_eq!((url.region(), url.table(), url.is_aws()), ("eu-west-1", "payments", true));
        assert_eq!(url.endpoint(), "https://dynamodb.eu-west-1.amazonaws.com");
        assert_eq!(url.to_string(), "dynamodb://eu-west-1/payments");
        let url: DynamoDbUrl = "dynamodb://cn-north-1/pay.ments".parse().unwrap();
        assert_eq!(url.endpoint(), "https://dynamodb.cn-north-1.amazonaws.com.cn");
        let url: DynamoDbUrl = "dynamodb://eu-west-1/payments?endpoint=http://127.0.0.1:8000/".parse().unwrap();
        assert_eq!((&*url.endpoint(), url.is_aws()), ("http://127.0.0.1:8000", false));
        let url: DynamoDbUrl = "dynamodb://eu-west-1/payments?endpoint=https://vpce-1.example".parse().unwrap();
        assert_eq!((&*url.endpoint(), url.is_aws()), ("https://vpce-1.example", true));
        assert_eq!(url.limits().head, Duration::from_secs(2));
        let patient: DynamoDbUrl = "dynamodb://eu-west-1/payments?timeout=20".parse().unwrap();
        assert_eq!(patient.limits().head, Duration::from_secs(20));
        assert!(patient.longest_call() > 2 * (patient.limits().head + patient.limits().body));
    }

    #[test]
    fn a_url_with_credentials_or_a_wrong_name_is_refused() {
        for text in [
            "dynamodb://AKIA:secret@eu-west-1/payments",
            "dynamodb://eu-west-1",
            "dynamodb://eu-west-1/",
            "dynamodb://eu-west-1/ab",
            "dynamodb://eu-west-1/a/b/c",
            "dynamodb://EU_WEST/payments",
            "dynamodb://eu-west-1:8000/payments",
            "dynamodb://eu-west-1,eu-west-2/payments",
            "dynamodb://eu-west-1/payments?endpoint=127.0.0.1:8000",
            "dynamodb://eu-west-1/payments?endpoint=http://",
            "dynamodb://eu-west-1/payments?endpoint=ftp://127.0.0.1",
            "dynamodb://eu-west-1/payments?timeout=0",
        ] {
            let error = text.parse::<DynamoDbUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(is_table(&"t".repeat(255)) && !is_table(&"t".repeat(256)));
    }

    #[test]
    fn tables_of_two_regions_are_two_places() {
        let place = |text: &str| text.parse::<DynamoDbUrl>().unwrap().place();
        let one = place("dynamodb://eu-west-1/payments");
        assert_eq!(one, place("dynamodb://eu-west-1/payments?endpoint=https://vpce-1.example"));
        assert_ne!(one, place("dynamodb://eu-west-2/payments"));
        assert_ne!(one, place("dynamodb://eu-west-1/payments?endpoint=http://127.0.0.1:8000"));
    }
}
