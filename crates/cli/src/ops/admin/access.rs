//! Which requests may read the pages of the admin listener other than /healthz and /readyz.

use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, StatusCode};

use crate::config::AdminToken;

/// The clients that may read the pages other than /healthz and /readyz.
#[derive(Clone, Debug)]
pub(crate) enum AdminAccess {
    /// Every client on this host that asks for an address, for `localhost`, or for one of these names. A page of a
    /// browser can reach the listener only under a name of its own (DNS rebinding).
    ThisHost { names: Vec<String> },
    /// Only clients that send this token.
    WithToken(AdminToken),
    /// No client: other hosts can connect, and no token is configured.
    NoClient,
}

impl AdminAccess {
    pub(crate) fn new(token: Option<&AdminToken>, listen: SocketAddr, names: &[String]) -> Self {
        match token {
            Some(token) => Self::WithToken(token.clone()),
            None if listen.ip().to_canonical().is_loopback() => Self::ThisHost { names: names.to_vec() },
            None => Self::NoClient,
        }
    }

    /// The status and the text of a refusal; none if the client has access.
    pub(super) fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self {
            Self::ThisHost { names } if asks_for(headers, names) => None,
            Self::ThisHost { .. } => Some((
                StatusCode::MISDIRECTED_REQUEST,
                "the Host field names another host; use an IP address or localhost, or allow the name with \
                 --admin-host\n",
            )),
            Self::WithToken(token) if bearer(headers).is_some_and(|shown| token.is(shown)) => None,
            Self::WithToken(_) => Some((StatusCode::UNAUTHORIZED, "send the token: Authorization: Bearer TOKEN\n")),
            Self::NoClient => Some((
                StatusCode::FORBIDDEN,
                "other hosts can reach this listener, and no token is configured; start with --admin-token-file\n",
            )),
        }
    }
}

/// Whether the Host field is an IP address, `localhost` or one of these names, with any port.
fn asks_for(headers: &HeaderMap, names: &[String]) -> bool {
    let mut fields = headers.get_all(HOST).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return false };
    let Ok(text) = field.to_str() else { return false };
    let host = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) | None => text,
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok()
        || names.iter().map(String::as_str).chain(["localhost"]).any(|name| name.eq_ignore_ascii_case(host))
}

/// The bearer token of a request that has exactly one Authorization field.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    // With two fields, a proxy and the gateway could read different ones.
    let (field, None) = (fields.next()?, fields.next()) else { return None };
    let (scheme, token) = field.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn token() -> AdminToken {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        AdminToken::read(file.path()).unwrap()
    }

    fn refused(access: &AdminAccess, name: HeaderName, values: &[&str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        if name != HOST {
            headers.append(HOST, HeaderValue::from_static("localhost:8081"));
        }
        for value in values {
            headers.append(&name, HeaderValue::from_str(value).unwrap());
        }
        access.refusal(&headers).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_token_is_required_when_configured_and_from_other_hosts() {
        for (listen, refusal) in [
            ("127.0.0.1:1", None),
            ("127.8.8.8:1", None),
            ("[::1]:1", None),
            ("[::ffff:127.0.0.1]:1", None),
            ("0.0.0.0:1", Some(403)),
            ("[::]:1", Some(403)),
            ("10.0.0.1:1", Some(403)),
        ] {
            let listen = listen.parse().unwrap();
            let without = AdminAccess::new(None, listen, &[]);
            assert_eq!(refused(&without, AUTHORIZATION, &["Bearer 0123456789abcdef"]), refusal, "{listen}");
            let access = AdminAccess::new(Some(&token()), listen, &[]);
            assert_eq!(refused(&access, AUTHORIZATION, &["bearer 0123456789abcdef"]), None, "{listen}");
            for credentials in [
                &[][..],
                &["Bearer 0123456789abcdee"],
                &["Bearer "],
                &["Basic 0123456789abcdef"],
                &["0123456789abcdef"],
                &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
            ] {
                assert_eq!(refused(&access, AUTHORIZATION, credentials), Some(401), "{listen} {credentials:?}");
            }
        }
    }

    #[test]
    fn without_a_token_the_host_is_an_address_localhost_or_a_listed_name() {
        let access = AdminAccess::new(None, "127.0.0.1:8081".parse().unwrap(), &["metrics.example".into()]);
        for host in
            ["127.0.0.1", "127.0.0.1:8081", "[::1]:8081", "[::1]", "LocalHost:1", "metrics.example:80", "10.0.0.7:1"]
        {
            assert_eq!(refused(&access, HOST, &[host]), None, "{host}");
        }
        for hosts in [
            &[][..],
            &["evil.example:8081"],
            &["evil.example"],
            &["127.0.0.1.evil.example"],
            &["localhost.evil.example"],
            &["localhost", "evil.example"],
            &[""],
            &[":8081"],
        ] {
            assert_eq!(refused(&access, HOST, hosts), Some(421), "{hosts:?}");
        }
    }
}
