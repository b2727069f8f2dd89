use std::fmt;
use std::str::FromStr;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape, is_endpoint};

use crate::errors::invalid;

/// The URL of a database of Google Cloud Spanner.
///
/// ```text
/// spanner://PROJECT/INSTANCE/DATABASE
/// spanner://PROJECT/INSTANCE/DATABASE?endpoint=http://HOST:PORT
/// ```
///
/// | parameter | |
/// |---|---|
/// | `endpoint=URL` | another address of the service: `https://` for a region; `http://` for an emulator, which gets no credentials |
///
/// The credentials are the Application Default Credentials, and never in the URL.
///
/// ```
/// use hapax::stores::SpannerUrl;
///
/// let url: SpannerUrl = "spanner://shop-4711/main/payments".parse()?;
/// assert_eq!((url.project(), url.instance(), url.database()), ("shop-4711", "main", "payments"));
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SpannerUrl {
    url: ServerUrl,
    instance: String,
    database: String,
}

/// The address of the service.
const GOOGLE: &str = "https://spanner.googleapis.com";

/// The port of the service, which `Display` leaves out.
const HTTPS: u16 = 443;

const SHAPE: UrlShape = UrlShape {
    schemes: &["spanner"],
    port: HTTPS,
    what: "a database of Spanner",
    example: "spanner://PROJECT/INSTANCE/DATABASE, spanner://shop-4711/main/payments for instance",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: true,
    parameters: &["endpoint"],
};

impl FromStr for SpannerUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a database, or has an unknown parameter or credentials.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        if url.user().is_some() || url.has_password() {
            return Err(invalid("a URL of Spanner has no credentials: they are the Application Default Credentials"));
        }
        let [project] = url.hosts() else { return Err(SHAPE.wrong()) };
        let Some((instance, database)) = url.path().split_once('/') else { return Err(SHAPE.wrong()) };
        if project.port != HTTPS {
            return Err(SHAPE.wrong());
        }
        if !is_instance(instance) {
            return Err(invalid(format!(
                "{instance:?} is no name of an instance: 2 to 64 small letters, digits and `-`, a letter first"
            )));
        }
        if !is_database(database) {
            return Err(invalid(format!(
                "{database:?} is no name of a database: 2 to 30 small letters, digits, `-` and `_`, a letter first"
            )));
        }
        if let Some(endpoint) = url.parameter("endpoint").filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(invalid(format!("the endpoint is http://HOST:PORT or https://HOST, not `{endpoint}`")));
        }
        let (instance, database) = (instance.to_owned(), database.to_owned());
        Ok(Self { url, instance, database })
    }
}

impl SpannerUrl {
    /// The project.
    pub fn project(&self) -> &str {
        &self.url.hosts()[0].name
    }

    /// The name of the instance, without the project.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The name of the database, without the instance.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The place of the records: the database, and the address of a stand-in.
    pub fn place(&self) -> StorePlace {
        let (project, instance, database) = (self.project(), self.instance(), self.database());
        StorePlace::new(match self.stand_in() {
            Some(address) => format!("spanner://{address}/{project}/{instance}/{database}"),
            None => format!("spanner://{project}/{instance}/{database}"),
        })
    }

    /// The host and port of a stand-in that has no TLS. None for Google.
    pub fn stand_in(&self) -> Option<&str> {
        let endpoint = self.url.parameter("endpoint")?.strip_prefix("http://")?;
        Some(endpoint.trim_end_matches('/'))
    }

    /// The full name of the instance.
    pub(super) fn instance_name(&self) -> String {
        format!("projects/{}/instances/{}", self.project(), self.instance)
    }

    /// The full name of the database.
    pub(super) fn database_name(&self) -> String {
        format!("{}/databases/{}", self.instance_name(), self.database)
    }

    /// The address of the service, without a `/` at its end.
    pub(super) fn endpoint(&self) -> &str {
        self.url.parameter("endpoint").unwrap_or(GOOGLE).trim_end_matches('/')
    }

    /// Whether it is Google itself, with TLS and credentials.
    pub(super) fn is_google(&self) -> bool {
        self.stand_in().is_none()
    }
}

fn is_instance(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (2..=64).contains(&name.len()) && begins_well(name) && name.bytes().all(is_plain)
}

fn is_database(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    (2..=30).contains(&name.len()) && begins_well(name) && name.bytes().all(is_plain)
}

fn begins_well(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
}

impl fmt::Display for SpannerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url.to_string().replacen(":443/", "/", 1))
    }
}

impl fmt::Debug for SpannerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpannerUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_database_and_perhaps_a_region_or_an_emulator() {
        let url: SpannerUrl = "spanner://shop-4711/main/pay_ments".parse().unwrap();
        assert_eq!((url.project(), url.instance(), url.database()), ("shop-4711", "main", "pay_ments"));
        assert_eq!((url.endpoint(), url.is_google(), url.stand_in()), (GOOGLE, true, None));
        assert_eq!(url.database_name(), "projects/shop-4711/instances/main/databases/pay_ments");
        assert_eq!(url.to_string(), "spanner://shop-4711/main/pay_ments");
        let region: SpannerUrl =
            "spanner://shop-4711/main/payments?endpoint=https://spanner.europe-west1.rep.example/".parse().unwrap();
        assert_eq!((region.endpoint(), region.is_google()), ("https://spanner.europe-west1.rep.example", true));
        let emulator: SpannerUrl = "spanner://p1/main/payments?endpoint=http://127.0.0.1:9010".parse().unwrap();
        assert_eq!((emulator.endpoint(), emulator.is_google()), ("http://127.0.0.1:9010", false));
    }

    #[test]
    fn a_url_with_credentials_or_a_wrong_name_is_refused() {
        for text in [
            "spanner://me:secret@shop/main/payments",
            "spanner://shop",
            "spanner://shop/main",
            "spanner://shop/main/",
            "spanner://shop/m/payments",
            "spanner://shop/Main/payments",
            "spanner://shop/main/p",
            "spanner://shop/main/4payments",
            "spanner://shop/main/payments/records",
            "spanner://shop:9010/main/payments",
            "spanner://shop,other/main/payments",
            "spanner://shop/main/payments?endpoint=127.0.0.1:9010",
            "spanner://shop/main/payments?endpoint=http://a/b",
            "spanner://shop/main/payments?timeout=3",
        ] {
            let error = text.parse::<SpannerUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(is_database(&"q".repeat(30)) && !is_database(&"q".repeat(31)));
        assert!(is_instance(&"q".repeat(64)) && !is_instance(&"q".repeat(65)));
    }

    #[test]
    fn databases_of_two_instances_are_two_places() {
        let place = |text: &str| text.parse::<SpannerUrl>().unwrap().place();
        let one = place("spanner://shop/main/payments");
        assert_eq!(one, place("spanner://shop/main/payments?endpoint=https://spanner.example"));
        assert_ne!(one, place("spanner://shop/other/payments"));
        assert_ne!(one, place("spanner://shop/main/payments?endpoint=http://127.0.0.1:9010"));
    }
}
