//! What a request must show before it may write.

use std::net::IpAddr;

use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;

use crate::admin::access::{AskedHost, one};
use crate::admin::api::ApiError;

/// Who asks, for the audit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Requester {
    /// The address of the client, or the user of this host.
    pub(crate) name: String,
    /// `admin-listener` or `command`.
    pub(crate) by: &'static str,
}

impl Requester {
    pub(crate) fn client(address: IpAddr) -> Self {
        Self { name: address.to_canonical().to_string(), by: "admin-listener" }
    }

    /// The user that runs this command.
    pub(crate) fn user() -> Self {
        let uid = rustix::process::getuid().as_raw();
        Self { name: format!("uid {uid}"), by: "command" }
    }
}

/// Refuses a write that a page of a browser could send on its own.
///
/// # Errors
/// The reason.
pub(super) fn check_write(headers: &HeaderMap, names: &[String]) -> Result<(), ApiError> {
    let host = AskedHost::of(headers).ok_or_else(|| ApiError::invalid("send exactly one Host field"))?;
    if !host.address.is_some_and(|address| address.to_canonical().is_loopback()) && !host.is_one_of(names) {
        let detail = "a write must ask for localhost, for a loopback address, or for a name that --admin-host allows";
        return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", detail));
    }
    let is_foreign = match headers.get_all(ORIGIN).iter().count() {
        0 => false,
        1 => one(headers, ORIGIN).is_none_or(|origin| !is_of(origin, host.field)),
        _ => true,
    };
    if is_foreign {
        let detail = "the request comes from a page of another origin";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign-origin", detail));
    }
    let is_json = one(headers, CONTENT_TYPE).is_some_and(|value| {
        let essence = value.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    if !is_json {
        let detail = "a write must have Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong-content-type", detail));
    }
    Ok(())
}

/// Whether an origin is that of the host which the request asks for.
fn is_of(origin: &str, host: &str) -> bool {
    origin.parse::<Uri>().is_ok_and(|origin| {
        let is_web = matches!(origin.scheme_str(), Some("http" | "https"));
        is_web && origin.authority().is_some_and(|own| own.as_str().eq_ignore_ascii_case(host))
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn status(fields: &[(&str, &str)]) -> u16 {
        let pair =
            |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in fields.iter().map(pair) {
            headers.append(name, value);
        }
        check_write(&headers, &["ops.example".into()]).map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_write_names_this_host_comes_from_its_own_page_and_is_json() {
        let json = ("content-type", "application/json; charset=utf-8");
        for host in ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "127.8.8.8", "OPS.example:1"] {
            assert_eq!(status(&[("host", host), json]), 200, "{host}");
            assert_eq!(status(&[("host", host), json, ("origin", &format!("http://{host}"))]), 200, "{host}");
        }
        for host in ["10.0.0.7:8081", "evil.example", "localhost.evil.example", "localhost@evil.example", ""] {
            assert_ne!(status(&[("host", host), json]), 200, "{host}");
        }
        let host = ("host", "localhost:8081");
        assert_eq!(status(&[host, host, json]), 400);
        for origin in
            ["http://localhost", "http://localhost:1", "http://evil.example", "null", "file://", "ftp://localhost:8081"]
        {
            assert_eq!(status(&[host, json, ("origin", origin)]), 403, "{origin}");
        }
        for content in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", ""]
        {
            assert_eq!(status(&[host, ("content-type", content)]), 415, "{content}");
        }
        assert_eq!(status(&[host]), 415);
        assert_eq!(status(&[host, json, json]), 415);
    }
}
