use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, Result};
use hapax_net::tls::TlsFiles;
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::errors::invalid;

/// The URL of a bucket of S3, of what speaks its protocol, or of Google Cloud Storage, and what the names of its
/// answers begin with.
///
/// ```text
/// s3://BUCKET/PREFIX
/// gs://BUCKET/PREFIX
/// ```
///
/// | parameter | |
/// |---|---|
/// | `region=NAME` | the region of the bucket, `us-east-1` by default; not for `gs://` |
/// | `endpoint=URL` | where a service other than AWS or Google is, `http://127.0.0.1:9000` for instance. With `http`, answers go over the network in plain text; for `gs://` it must then be on this host |
/// | `ca=FILE` | the authorities that sign the certificate of such a service, in PEM |
/// | `timeout=SECONDS` | how long a call may take until its answer begins, and how long the rest of the answer, 30 by default |
///
/// The credentials come from the usual places of AWS, and never from the URL. For `gs://`, which needs the feature
/// `gcs`, they are the Application Default Credentials. An endpoint with `https` gets a token, one with `http` none.
///
/// ```
/// use hapax::stores::BucketUrl;
///
/// let url: BucketUrl = "s3://shop-answers/hapax?region=eu-west-1".parse()?;
/// assert_eq!(url.prefix(), "hapax");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BucketUrl {
    url: ServerUrl,
    prefix: String,
    endpoint: Option<String>,
    pub(super) timeout: Duration,
}

const SHAPE: UrlShape = UrlShape {
    schemes: if cfg!(feature = "gcs") { &["s3", GOOGLE] } else { &["s3"] },
    port: HTTPS,
    what: "a bucket for answers",
    example: "s3://BUCKET/PREFIX, s3://shop-answers/hapax for instance",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: true,
    parameters: &["region", "endpoint", "ca", "timeout"],
};

const ENDPOINT: UrlShape = UrlShape {
    schemes: &["http", "https"],
    port: HTTPS,
    what: "an endpoint",
    example: "http://HOST:PORT or https://HOST[:PORT]",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &[],
};

/// The scheme of Google Cloud Storage.
const GOOGLE: &str = "gs";

const HTTPS: u16 = 443;

/// The port of an endpoint without TLS that is written without one.
const HTTP: u16 = 80;

/// The longest prefix, in bytes. S3 takes names of 1,024 bytes.
const LONGEST_PREFIX: usize = 512;

impl BucketUrl {
    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.url.hosts()[0].name
    }

    /// The prefix of the names of the objects, without a `/` at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn region(&self) -> &str {
        self.url.parameter("region").unwrap_or("us-east-1")
    }

    /// Whether it is a bucket of Google Cloud Storage.
    pub(super) fn is_google(&self) -> bool {
        self.url.scheme() == GOOGLE
    }

    /// Whether the connections have TLS.
    pub(super) fn has_tls(&self) -> bool {
        !self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"))
    }

    pub(super) fn tls_files(&self) -> TlsFiles {
        self.url.tls_files()
    }

    /// Where the bucket is. It has a host of its own at AWS, but not if the certificate of AWS would not fit that host.
    pub(super) fn place(&self) -> String {
        let (bucket, region) = (self.bucket(), self.region());
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        match &self.endpoint {
            Some(endpoint) => format!("{endpoint}/{bucket}"),
            None if self.is_google() => format!("https://storage.googleapis.com/{bucket}"),
            None if bucket.contains('.') => format!("https://s3.{region}.{domain}/{bucket}"),
            None => format!("https://{bucket}.s3.{region}.{domain}"),
        }
    }
}

impl FromStr for BucketUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a bucket with a prefix, or has an unknown parameter or credentials.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        if url.user().is_some() || url.has_password() {
            return Err(invalid(
                "a URL of a bucket has no credentials: they come from the usual places of AWS or Google",
            ));
        }
        let [host] = url.hosts() else { return Err(SHAPE.wrong()) };
        if host.port != HTTPS || !is_bucket(&host.name) {
            return Err(SHAPE.wrong());
        }
        let prefix = url.encoded_path().trim_end_matches('/').to_owned();
        if !is_prefix(&prefix) {
            return Err(invalid(format!(
                "{prefix:?} is no prefix for answers: up to {LONGEST_PREFIX} letters, digits, `-`, `_`, `.` and `=`, \
                 with single `/` between them"
            )));
        }
        let region = url.parameter("region").unwrap_or_default();
        if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(invalid(format!("{region:?} is no name of a region")));
        }
        if url.scheme() == GOOGLE && !region.is_empty() {
            return Err(invalid("a bucket of Google Cloud Storage is found without a region; leave it out"));
        }
        let endpoint = url.parameter("endpoint").map(|text| endpoint(text, url.scheme() == GOOGLE)).transpose()?;
        let timeout = url.seconds("timeout", 1..=300)?.unwrap_or(Duration::from_secs(30));
        Ok(Self { url, prefix, endpoint, timeout })
    }
}

fn is_bucket(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let has_ends = name.bytes().next().is_some_and(is_plain) && name.bytes().next_back().is_some_and(is_plain);
    (3..=63).contains(&name.len()) && has_ends && name.bytes().all(|byte| is_plain(byte) || b"-.".contains(&byte))
}

/// Whether a prefix needs no encoding anywhere.
fn is_prefix(prefix: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=".contains(&byte);
    let is_part = |part: &str| !["", ".", ".."].contains(&part) && part.bytes().all(is_plain);
    prefix.len() <= LONGEST_PREFIX && prefix.split('/').all(is_part)
}

/// The endpoint without a `/` at its end.
fn endpoint(text: &str, is_google: bool) -> Result<String> {
    let is_plain = text.to_ascii_lowercase().starts_with("http://");
    let shape = UrlShape { port: if is_plain { HTTP } else { HTTPS }, ..ENDPOINT };
    let url = shape.parse(text)?;
    match url.hosts() {
        [host] if is_google && is_plain && !host.is_loopback() => Err(invalid(format!(
            "the endpoint {host} has no TLS and is not on this host: a stand-in for Google Cloud Storage has an \
             address such as http://127.0.0.1:9000"
        ))),
        [host] if url.path().is_empty() && url.user().is_none() && !url.has_password() => {
            Ok(format!("{}://{host}", url.scheme()))
        }
        _ => Err(shape.wrong()),
    }
}

/// The bucket and the prefix.
impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.url.scheme(), self.bucket(), self.prefix)
    }
}

impl fmt::Debug for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_a_host_of_its_own_at_aws_and_a_path_elsewhere() {
        for (text, place) in [
            ("s3://shop/a/b", "https://shop.s3.us-east-1.amazonaws.com"),
            ("s3://shop/a?region=eu-west-1", "https://shop.s3.eu-west-1.amazonaws.com"),
            ("s3://shop/a?region=cn-north-1", "https://shop.s3.cn-north-1.amazonaws.com.cn"),
            ("s3://shop.example/a?region=eu-west-1", "https://s3.eu-west-1.amazonaws.com/shop.example"),
            ("s3://shop/a/?endpoint=http://127.0.0.1:9000", "http://127.0.0.1:9000/shop"),
            ("s3://shop/a?endpoint=https://minio.example/", "https://minio.example:443/shop"),
            ("s3://shop/a?endpoint=http://minio.example", "http://minio.example:80/shop"),
        ] {
            let url: BucketUrl = text.parse().unwrap();
            assert_eq!(url.place(), place, "{text}");
            assert_eq!(url.has_tls(), place.starts_with("https"), "{text}");
        }
        let url: BucketUrl = "s3://shop/a/b/?timeout=7".parse().unwrap();
        assert_eq!((url.prefix(), url.timeout, &*url.to_string()), ("a/b", Duration::from_secs(7), "s3://shop/a/b"));
    }

    #[cfg(feature = "gcs")]
    #[test]
    fn a_bucket_of_google_has_a_path_and_no_region() {
        let url: BucketUrl = "gs://shop-answers/hapax/".parse().unwrap();
        assert_eq!((url.place(), url.is_google()), ("https://storage.googleapis.com/shop-answers".into(), true));
        assert_eq!((url.prefix(), &*url.to_string()), ("hapax", "gs://shop-answers/hapax"));
        let stand_in: BucketUrl = "gs://shop/a?endpoint=http://127.0.0.1:9000".parse().unwrap();
        assert_eq!((stand_in.place(), stand_in.has_tls()), ("http://127.0.0.1:9000/shop".into(), false));
        for endpoint in ["http://localhost", "http://[::1]:80", "https://storage.europe-west3.rep.googleapis.com"] {
            format!("gs://shop/a?endpoint={endpoint}").parse::<BucketUrl>().unwrap();
        }
        for (text, said) in [
            ("gs://shop/a?region=eu", "without a region"),
            ("gs://shop/a?endpoint=http://bucket.example:9000", "not on this host"),
            ("gs://shop/a?endpoint=HTTP://10.0.0.1", "not on this host"),
            ("gs://key:secret@shop/a", "usual places"),
        ] {
            let error = text.parse::<BucketUrl>().unwrap_err();
            assert!(error.to_string().contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_no_bucket_with_a_prefix_is_refused() {
        for (text, said) in [
            ("s3://shop", "s3://BUCKET/PREFIX"),
            ("s3://Shop/a", "s3://BUCKET/PREFIX"),
            ("s3://sh/a", "s3://BUCKET/PREFIX"),
            ("s3://shop:9000/a", "s3://BUCKET/PREFIX"),
            ("s3://shop,other/a", "s3://BUCKET/PREFIX"),
            ("s3://shop/", "is no prefix"),
            ("s3://shop/a//b", "is no prefix"),
            ("s3://shop/a/../b", "is no prefix"),
            ("s3://shop/a%20b", "is no prefix"),
            ("s3://KEY:secret@shop/a", "no credentials"),
            ("s3://shop/a?region=eu/west", "no name of a region"),
            ("s3://shop/a?endpoint=127.0.0.1:9000", "http://HOST:PORT"),
            ("s3://shop/a?endpoint=http://127.0.0.1:9000/x", "http://HOST:PORT"),
            ("s3://shop/a?timeout=0", "from 1 to 300"),
            ("s3://shop/a?acl=x", "no parameter `acl`"),
        ] {
            let error = text.parse::<BucketUrl>().unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
