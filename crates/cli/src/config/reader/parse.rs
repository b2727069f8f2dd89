//! How values are written.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use hapax::http::headers::is_storable;
use hapax::http::{JsonKey, Tenant};
use http::uri::{Scheme, Uri};
use http::{HeaderName, Method};

use crate::upstream::forward::Upstream;

/// Where the key of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyPlace {
    Field(HeaderName),
    Body(JsonKey),
}

/// Whether a request is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protect {
    /// It must have a key.
    Required,
    /// If it has a key.
    Optional,
    /// Never: it streams past.
    Off,
}

impl std::fmt::Display for Protect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Off => "off",
        })
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, anyhow::Error> {
    humantime::parse_duration(text).context("write a duration with its unit, 30s or 24h for instance")
}

pub(crate) fn some_time(text: &str) -> Result<Duration, anyhow::Error> {
    match duration(text)? {
        Duration::ZERO => bail!("nothing answers in no time; write 1s for instance"),
        duration => Ok(duration),
    }
}

pub(crate) fn count(text: &str) -> Result<usize, anyhow::Error> {
    match text.parse().context("write a whole number")? {
        0 => bail!("nothing could ever run; write 1 or more"),
        count => Ok(count),
    }
}

pub(crate) fn bytes(text: &str) -> Result<usize, anyhow::Error> {
    let (number, unit) = text.split_at(text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => bail!("write a number of bytes, 1048576 or 1MiB for instance (units are KiB, MiB and GiB)"),
    };
    let number: usize = number.parse().context("write a number of bytes, 1048576 or 1MiB for instance")?;
    number.checked_mul(unit).context("that is more than this machine can count")
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, anyhow::Error> {
    text.parse().context("write an IP address and a port, 127.0.0.1:8080 for instance")
}

pub(crate) fn path(text: &str) -> Result<PathBuf, anyhow::Error> {
    if text.is_empty() {
        bail!("the path is empty; name one, or leave the setting out");
    }
    Ok(text.into())
}

pub(crate) fn namespace(text: &str) -> Result<String, anyhow::Error> {
    if text.is_empty() {
        bail!("the namespace is empty; give it the name of the service");
    }
    Ok(text.to_owned())
}

pub(crate) fn upstream(text: &str) -> Result<Upstream, anyhow::Error> {
    const WRITE: &str = "write http://HOST:PORT, https://HOST:PORT or h2c://HOST:PORT";
    let uri: Uri = text.parse().context(WRITE)?;
    let (scheme, is_h2) = match uri.scheme_str() {
        Some("http") => (Scheme::HTTP, false),
        Some("https") => (Scheme::HTTPS, false),
        Some("h2c") => (Scheme::HTTP, true),
        _ => bail!("the API is spoken to in HTTP; {WRITE}"),
    };
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        bail!("a path is taken from each request; {WRITE} alone");
    }
    let authority = uri.authority().cloned().context(WRITE)?;
    if authority.as_str().contains('@') {
        bail!("credentials are passed on from each request; {WRITE} alone");
    }
    Ok(Upstream { scheme, authority, is_h2 })
}

pub(crate) fn tenant(text: &str) -> Result<Tenant, anyhow::Error> {
    match text.split_once(':') {
        None if text == "authorization" => Ok(Tenant::Authorization),
        None if text == "none" => Ok(Tenant::None),
        Some(("header", name)) => header(name).map(Tenant::Header),
        _ => bail!("write authorization, header:NAME or none"),
    }
}

pub(crate) fn key_place(text: &str) -> Result<KeyPlace, anyhow::Error> {
    match text.split_once(':') {
        Some(("header", name)) => header(name).map(KeyPlace::Field),
        Some(("json", pointer)) => Ok(KeyPlace::Body(JsonKey::at(pointer)?)),
        _ => bail!("write header:NAME or json:/POINTER, json:/id for instance"),
    }
}

fn header(name: &str) -> Result<HeaderName, anyhow::Error> {
    name.trim().parse().with_context(|| format!("no header can be called {name:?}"))
}

pub(crate) fn kept_header(text: &str) -> Result<HeaderName, anyhow::Error> {
    let name = header(text)?;
    if !is_storable(&name) {
        bail!("{name} belongs to one connection, moment or client, and cannot be given to another; leave it out");
    }
    Ok(name)
}

pub(crate) fn method(text: &str) -> Result<Method, anyhow::Error> {
    let upper = text.to_ascii_uppercase();
    if text != upper {
        bail!("methods are written in capitals: {upper}");
    }
    match Method::from_bytes(text.as_bytes()).context("no method can be called that")? {
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::CONNECT => {
            bail!("{text} changes nothing and always passes; name POST, PATCH, PUT or DELETE")
        }
        method => Ok(method),
    }
}

pub(crate) fn status(text: &str) -> Result<u16, anyhow::Error> {
    match text.parse() {
        Ok(status @ 200..=599) => Ok(status),
        _ => bail!("write the status of an answer, 200 to 599"),
    }
}

/// Reads one of a few words.
macro_rules! words {
    ($($name:ident -> $value:ty { $($word:literal => $meaning:expr),+ $(,)? })+) => {$(
        pub(crate) fn $name(text: &str) -> Result<$value, anyhow::Error> {
            match text {
                $($word => Ok($meaning),)+
                _ => bail!("{text:?} is none of: {}", [$($word),+].join(", ")),
            }
        }
    )+};
}

words! {
    key_rule -> Protect { "required" => Protect::Required, "optional" => Protect::Optional }
    protect -> Protect { "required" => Protect::Required, "optional" => Protect::Optional, "off" => Protect::Off }
    is_strict -> bool { "lenient" => false, "strict" => true }
    may_retry -> bool { "hold" => false, "retry" => true }
    may_pass -> bool { "reject" => false, "pass" => true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_scheme_and_an_authority() {
        assert_eq!(upstream("http://127.0.0.1:9000").unwrap().authority, "127.0.0.1:9000");
        assert_eq!(upstream("https://api.example").unwrap().scheme, Scheme::HTTPS);
        for url in ["127.0.0.1:9000", "ftp://api.example", "http://api.example/v1", "http://api.example?x"] {
            let error = format!("{:#}", upstream(url).unwrap_err());
            assert!(error.contains("http://HOST:PORT"), "{url}: {error}");
        }
    }

    #[test]
    fn a_tenant_has_one_of_three_sources() {
        assert_eq!(tenant("authorization").unwrap(), Tenant::Authorization);
        assert_eq!(tenant("header:X-Account").unwrap(), Tenant::Header("x-account".parse().unwrap()));
        assert_eq!(tenant("none").unwrap(), Tenant::None);
        for origin in ["", "header", "header:", "header:a b", "nobody"] {
            assert!(tenant(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn a_key_is_in_a_header_or_in_the_body() {
        assert_eq!(key_place("header:X-Id").unwrap(), KeyPlace::Field("x-id".parse().unwrap()));
        assert_eq!(key_place("json:/a/b").unwrap(), KeyPlace::Body(JsonKey::at("/a/b").unwrap()));
        for place in ["", "json", "json:", "json:id", "header:", "cookie:x"] {
            assert!(key_place(place).is_err(), "{place}");
        }
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, number) in [("0", 0), ("12", 12), ("12B", 12), ("2KiB", 2048), ("1 MiB", 1 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(bytes(text).unwrap(), number, "{text}");
        }
        for text in ["", "KiB", "1MB", "-1", "1.5MiB", "99999999999999999999", "18446744073709551615KiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
