//! Parses the text of each kind of value. An error says how to write the value.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use hapax::http::headers::{HOP_BY_HOP, RESERVED_PREFIX, is_storable};
use hapax::http::{JsonKey, ProblemTemplate, TenantPart};
use http::uri::{Scheme, Uri};
use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;

use crate::gateway::ingress::field_names::{UnderscoreFields, is_of_proxies};
use crate::serve::logs::LogFormat;
use crate::upstream::client::Upstream;

/// Where the key of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyPlace {
    Field(HeaderName),
    Body(JsonKey),
}

/// Whether requests are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protect {
    /// A request without a key is refused.
    Required,
    /// A request without a key is forwarded unprotected.
    Optional,
    /// Every request is forwarded unprotected.
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
    humantime::parse_duration(text).context("write a duration with its unit, for instance 30s or 24h")
}

pub(crate) fn nonzero_duration(text: &str) -> Result<Duration, anyhow::Error> {
    match duration(text)? {
        Duration::ZERO => bail!("must not be zero: every request would time out at once; write for instance 1s"),
        duration => Ok(duration),
    }
}

/// How long something is kept. None: for ever.
pub(crate) fn retention(text: &str) -> Result<Option<Duration>, anyhow::Error> {
    if text == "forever" { Ok(None) } else { duration(text).map(Some) }
}

pub(crate) fn count(text: &str) -> Result<usize, anyhow::Error> {
    text.parse().context("write a whole number")
}

pub(crate) fn bytes(text: &str) -> Result<usize, anyhow::Error> {
    let (number, unit) = text.split_at(text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => bail!("write a number of bytes, for instance 1048576 or 1MiB (units: KiB, MiB, GiB)"),
    };
    let number: usize = number.parse().context("write a number of bytes, for instance 1048576 or 1MiB")?;
    number.checked_mul(unit).context("the number of bytes is too large for this machine")
}

pub(crate) fn percent(text: &str) -> Result<usize, anyhow::Error> {
    const WRITE: &str = "write a percentage from 1 to 100, without a sign";
    match text.parse().context(WRITE)? {
        percent @ 1..=100 => Ok(percent),
        _ => bail!(WRITE),
    }
}

/// A network, or a single address.
pub(crate) fn network(text: &str) -> Result<IpNet, anyhow::Error> {
    let single = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse().ok().or_else(single);
    network.context("write a network or an address, for instance 10.0.0.0/8 or fd00::/8")
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, anyhow::Error> {
    text.parse().context("write an IP address and a port, for instance 127.0.0.1:8080")
}

pub(crate) fn path(text: &str) -> Result<PathBuf, anyhow::Error> {
    if text.is_empty() {
        bail!("the path is empty; write a path or remove the setting");
    }
    Ok(text.into())
}

/// A host as a `Host` field names it: an IPv6 address is in brackets.
pub(crate) fn host_name(text: &str) -> Result<String, anyhow::Error> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<Ipv6Addr>() {
        return Ok(format!("[{address}]"));
    }
    if text.is_empty() || text.contains(|other: char| !other.is_ascii_alphanumeric() && !"-._".contains(other)) {
        bail!("{text:?} is not a host; write a name or an address without a port, metrics.example for instance");
    }
    Ok(text.to_owned())
}

pub(crate) fn namespace(text: &str) -> Result<String, anyhow::Error> {
    if text.is_empty() {
        bail!("the namespace is empty; write the name of the service");
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
        _ => bail!("the API must be an HTTP server; {WRITE}"),
    };
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        bail!("remove the path: each request brings its own; {WRITE}");
    }
    let authority = uri.authority().cloned().context(WRITE)?;
    if authority.as_str().contains('@') {
        bail!("remove the credentials: each request brings its own; {WRITE}");
    }
    Ok(Upstream { scheme, authority, is_h2 })
}

/// A part of the rule for tenants. None: `none`.
pub(crate) fn tenant_part(text: &str) -> Result<Option<TenantPart>, anyhow::Error> {
    match text.split_once(':') {
        None if text == "authorization" => Ok(Some(TenantPart::Authorization)),
        None if text == "none" => Ok(None),
        Some(("header", name)) => header(name).map(TenantPart::Header).map(Some),
        Some(("optional-header", name)) => header(name).map(TenantPart::OptionalHeader).map(Some),
        _ => bail!("write authorization, header:NAME, optional-header:NAME or none"),
    }
}

/// A change of the rule by which payloads are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FingerprintChange {
    /// No change.
    Raw,
    /// No rule at all.
    NoRule,
    JsonCanonical,
    WithoutHost,
    Header(HeaderName),
    WithoutQuery(String),
}

pub(crate) fn fingerprint_change(text: &str) -> Result<FingerprintChange, anyhow::Error> {
    match (text, text.split_once(':')) {
        ("raw", _) => Ok(FingerprintChange::Raw),
        ("none", _) => Ok(FingerprintChange::NoRule),
        ("json-canonical", _) => Ok(FingerprintChange::JsonCanonical),
        ("host:off", _) => Ok(FingerprintChange::WithoutHost),
        (_, Some(("header", name))) => compared_header(name).map(FingerprintChange::Header),
        (_, Some(("without-query", name))) => query_parameter(name).map(FingerprintChange::WithoutQuery),
        _ => bail!("write raw, none, json-canonical, host:off, header:NAME or without-query:NAME"),
    }
}

/// A field that the fingerprint may cover: the gateway neither sets nor removes it.
pub(crate) fn compared_header(text: &str) -> Result<HeaderName, anyhow::Error> {
    let name = header(text)?;
    if HOP_BY_HOP.contains(&name) || name.as_str().starts_with(RESERVED_PREFIX) || is_of_proxies(&name) {
        bail!("{name} does not reach the API as the client sent it; name another field");
    }
    Ok(name)
}

/// A template of problems. None: problem details.
pub(crate) fn problem_format(text: &str) -> Result<Option<ProblemTemplate>, anyhow::Error> {
    match text.split_once(':') {
        None if text == "problem+json" => Ok(None),
        Some(("json", template)) => Ok(Some(ProblemTemplate::parse(template)?)),
        _ => bail!("write problem+json or json:TEMPLATE"),
    }
}

/// The name of a parameter of the query, as it is written there.
pub(crate) fn query_parameter(text: &str) -> Result<String, anyhow::Error> {
    if text.is_empty() || text.contains(['&', '=', ';', '#']) {
        bail!("write the name of a parameter as it is in the query, without its value");
    }
    Ok(text.to_owned())
}

/// An origin as browsers send it: scheme, host, and a port that is not the usual one. `*` stands for every origin.
pub(crate) fn origin(text: &str) -> Result<HeaderValue, anyhow::Error> {
    const REMEDY: &str = "write scheme and host as a browser sends them, for instance https://shop.example or \
                          http://localhost:3000, or `*`";
    let as_sent = |url: Uri| {
        let (scheme, authority) = (url.scheme_str()?, url.authority()?);
        let usual = matches!((scheme, authority.port_u16()), ("http", Some(80)) | ("https", Some(443)));
        let port = authority.port_u16().filter(|_| !usual).map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{scheme}://{}{port}", authority.host().to_ascii_lowercase()))
    };
    let is_origin = text == "*" || text.parse().ok().and_then(as_sent).is_some_and(|sent| sent == text);
    if !is_origin || text.contains("//*") {
        bail!(REMEDY);
    }
    HeaderValue::from_str(text).context(REMEDY)
}

pub(crate) fn key_place(text: &str) -> Result<KeyPlace, anyhow::Error> {
    match text.split_once(':') {
        Some(("header", name)) => header(name).map(KeyPlace::Field),
        Some(("json", pointer)) => Ok(KeyPlace::Body(JsonKey::at(pointer)?)),
        _ => bail!("write header:NAME or json:/POINTER, for instance json:/id"),
    }
}

pub(crate) fn header(name: &str) -> Result<HeaderName, anyhow::Error> {
    name.trim().parse().with_context(|| format!("{name:?} is not a valid header name"))
}

/// The header with the ordering key. None if the source has it.
pub(crate) fn order(text: &str) -> Result<Option<String>, anyhow::Error> {
    match text.split_once(':') {
        None if text == "source" => Ok(None),
        Some(("header", name)) => header(name).map(|_| Some(name.trim().to_owned())),
        _ => bail!("write source or header:NAME"),
    }
}

pub(crate) fn storable_header(text: &str) -> Result<HeaderName, anyhow::Error> {
    let name = header(text)?;
    if !is_storable(&name) {
        bail!("{name} must not be stored: it belongs to one connection, moment or client; remove it");
    }
    Ok(name)
}

pub(crate) fn method(text: &str) -> Result<Method, anyhow::Error> {
    let upper = text.to_ascii_uppercase();
    if text != upper {
        bail!("methods are upper case: write {upper}");
    }
    match Method::from_bytes(text.as_bytes()).context("this is not a valid method")? {
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::CONNECT => {
            bail!("{text} is never protected; write POST, PATCH, PUT or DELETE")
        }
        method => Ok(method),
    }
}

pub(crate) fn status(text: &str) -> Result<u16, anyhow::Error> {
    match text.parse() {
        Ok(status @ 200..=599) => Ok(status),
        _ => bail!("write a response status from 200 to 599"),
    }
}

/// Defines functions that parse one of a few words.
macro_rules! words {
    ($($name:ident -> $value:ty { $($word:literal => $meaning:expr),+ $(,)? })+) => {$(
        pub(crate) fn $name(text: &str) -> Result<$value, anyhow::Error> {
            match text {
                $($word => Ok($meaning),)+
                _ => bail!("write one of: {}", [$($word),+].join(", ")),
            }
        }
    )+};
}

words! {
    log_format -> LogFormat { "text" => LogFormat::Text, "json" => LogFormat::Json }
    key_rule -> Protect { "required" => Protect::Required, "optional" => Protect::Optional }
    protect -> Protect { "required" => Protect::Required, "optional" => Protect::Optional, "off" => Protect::Off }
    is_strict -> bool { "lenient" => false, "strict" => true }
    is_retry -> bool { "hold" => false, "retry" => true }
    is_json_canonical -> bool { "raw" => false, "json-canonical" => true }
    is_pass -> bool { "reject" => false, "pass" => true }
    is_park -> bool { "continue" => false, "park" => true }
    is_on -> bool { "off" => false, "on" => true }
    underscore_fields -> UnderscoreFields { "drop" => UnderscoreFields::Drop, "forward" => UnderscoreFields::Forward }
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
    fn a_part_of_a_tenant_has_one_of_four_forms() {
        let account: HeaderName = "x-account".parse().unwrap();
        assert_eq!(tenant_part("authorization").unwrap(), Some(TenantPart::Authorization));
        assert_eq!(tenant_part("header:X-Account").unwrap(), Some(TenantPart::Header(account.clone())));
        assert_eq!(tenant_part("optional-header:X-Account").unwrap(), Some(TenantPart::OptionalHeader(account)));
        assert_eq!(tenant_part("none").unwrap(), None);
        for rule in ["", "header", "header:", "header:a b", "optional-header:", "nobody"] {
            assert!(tenant_part(rule).is_err(), "{rule}");
        }
    }

    #[test]
    fn a_compared_field_reaches_the_api_as_it_was_sent() {
        assert_eq!(compared_header("Stripe-Account").unwrap(), "stripe-account");
        for name in ["connection", "Hapax-Token", "X-Forwarded-For", "x-real-ip", "a b", ""] {
            assert!(compared_header(name).is_err(), "{name}");
        }
        assert!(query_parameter("trace_id").is_ok() && query_parameter("a=b").is_err() && query_parameter("").is_err());
    }

    #[test]
    fn an_origin_is_written_as_browsers_send_it() {
        for text in
            ["*", "https://shop.example", "http://localhost:3000", "https://[::1]:8443", "capacitor://localhost"]
        {
            assert_eq!(origin(text).unwrap(), text);
        }
        for text in [
            "",
            "null",
            "shop.example",
            "https://shop.example/",
            "https://Shop.example",
            "https://shop.example:443",
            "http://shop.example:80",
            "https://a@shop.example",
            "https://shop.example:",
            "https://shop.example:65536",
            "https://shop.example:08443",
            "https://*.shop.example",
        ] {
            assert!(origin(text).is_err(), "{text}");
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
    fn a_network_is_a_cidr_or_an_address() {
        for (text, expected) in [("10.0.0.0/8", "10.0.0.0/8"), ("::1", "::1/128"), ("10.1.2.3", "10.1.2.3/32")] {
            assert_eq!(network(text).unwrap().to_string(), expected);
        }
        for text in ["", "10.0.0.0/33", "10.0.0", "localhost"] {
            assert!(network(text).is_err(), "{text}");
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
