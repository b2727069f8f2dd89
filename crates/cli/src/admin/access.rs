//! Which requests may read the pages of the admin listener other than /healthz and /readyz.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, StatusCode};

use crate::admin::api::ApiError;
use crate::config::{AdminConfig, AdminToken};

/// The clients that may read the pages other than /healthz and /readyz.
#[derive(Clone, Debug)]
pub(crate) enum AdminAccess {
    /// Every client on this host that asks for an address, for `localhost`, or for one of these names. A page of a
    /// browser can reach the listener only under a name of its own (DNS rebinding).
    ThisHost { names: Vec<String> },
    /// Only clients that send one of these tokens.
    WithTokens {
        /// May read.
        read: Option<AdminToken>,
        /// May read and write.
        write: Option<AdminToken>,
        names: Vec<String>,
    },
    /// No client: other hosts can connect, and no token is configured.
    NoClient,
}

impl AdminAccess {
    pub(crate) fn new(admin: &AdminConfig) -> Self {
        let names = admin.hosts.clone();
        match (&admin.token, &admin.write_token) {
            (None, None) if admin.listen.ip().to_canonical().is_loopback() => Self::ThisHost { names },
            (None, None) => Self::NoClient,
            (read, write) => Self::WithTokens { read: read.clone(), write: write.clone(), names },
        }
    }

    /// The names under which a browser may ask, beside addresses and `localhost`.
    pub(crate) fn names(&self) -> &[String] {
        match self {
            Self::ThisHost { names } | Self::WithTokens { names, .. } => names,
            Self::NoClient => &[],
        }
    }

    /// The refusal of a request; none if the client has access.
    pub(super) fn refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        match self {
            Self::ThisHost { names }
                if AskedHost::of(headers).is_some_and(|host| host.address.is_some() || host.is_one_of(names)) =>
            {
                None
            }
            Self::ThisHost { .. } => Some(ApiError::new(
                StatusCode::MISDIRECTED_REQUEST,
                "wrong-host",
                "the Host field names another host; use an IP address or localhost, or allow the name with \
                 --admin-host",
            )),
            Self::WithTokens { read, write, .. }
                if bearer(headers).is_some_and(|shown| is_one_of([read, write], shown)) =>
            {
                None
            }
            Self::WithTokens { .. } => {
                let detail = "send the token: Authorization: Bearer TOKEN";
                Some(ApiError::new(StatusCode::UNAUTHORIZED, "token-required", detail))
            }
            Self::NoClient => Some(ApiError::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                "other hosts can reach this listener, and no token is configured; start with --admin-token-file",
            )),
        }
    }

    /// As [`refusal`](Self::refusal), for a client that may read and wants to write.
    pub(crate) fn write_refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        match self {
            Self::WithTokens { write, .. } if bearer(headers).is_some_and(|shown| is_one_of([write], shown)) => None,
            // Another token may write: the dashboard asks for it.
            Self::WithTokens { write: Some(_), .. } => {
                Some(ApiError::new(StatusCode::FORBIDDEN, "token-reads-only", "this token may only read"))
            }
            Self::WithTokens { write: None, .. } => Some(ApiError::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                "no token may write; start with --admin-write-token-file, or without any token on a loopback address",
            )),
            Self::ThisHost { .. } | Self::NoClient => self.refusal(headers),
        }
    }
}

/// Whether the text is one of these tokens. Compares with all of them, so that the duration does not tell which one.
fn is_one_of<const N: usize>(tokens: [&Option<AdminToken>; N], shown: &[u8]) -> bool {
    tokens.into_iter().flatten().fold(false, |is_known, token| token.is(shown) | is_known)
}

/// The host that a request asks for.
#[derive(Debug)]
pub(super) struct AskedHost<'a> {
    /// The field as it was sent, with its port.
    pub(super) field: &'a str,
    name: &'a str,
    /// None for a name.
    pub(super) address: Option<IpAddr>,
}

impl<'a> AskedHost<'a> {
    /// None unless the request has exactly one Host field, which is text.
    pub(super) fn of(headers: &'a HeaderMap) -> Option<Self> {
        let field = one(headers, HOST)?;
        let name = match field.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) | None => field,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        Some(Self { field, name, address: address.parse().ok() })
    }

    /// Whether it is `localhost` or one of these names.
    pub(super) fn is_one_of(&self, names: &[String]) -> bool {
        names.iter().map(String::as_str).chain(["localhost"]).any(|name| name.eq_ignore_ascii_case(self.name))
    }
}

/// The text of a field that is given exactly once.
pub(super) fn one(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut fields = headers.get_all(name).iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) => field.to_str().ok(),
        _ => None,
    }
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
    use http::HeaderValue;

    use super::*;

    fn token(text: &str) -> AdminToken {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
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
        access.refusal(&headers).map(|refusal| refusal.status.as_u16())
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
            let admin = |token| AdminConfig { listen, token, write_token: None, hosts: Vec::new(), audit_file: None };
            let without = AdminAccess::new(&admin(None));
            assert_eq!(refused(&without, AUTHORIZATION, &["Bearer 0123456789abcdef"]), refusal, "{listen}");
            let access = AdminAccess::new(&admin(Some(token("0123456789abcdef"))));
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
        let access = AdminAccess::ThisHost { names: vec!["metrics.example".into()] };
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

    #[test]
    fn one_token_reads_and_the_other_one_writes_as_well() {
        let (reads, writes) = ("0123456789abcdef", "fedcba9876543210");
        let headers = |token: &str| {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            HeaderMap::from_iter([(AUTHORIZATION, value)])
        };
        let status = |refusal: Option<ApiError>| refusal.map(|refusal| refusal.status.as_u16());
        for (read, write, expected) in [
            (Some(reads), Some(writes), [(None, Some(403)), (None, None)]),
            (Some(reads), None, [(None, Some(403)), (Some(401), Some(403))]),
            (None, Some(writes), [(Some(401), Some(403)), (None, None)]),
        ] {
            let access = AdminAccess::WithTokens { read: read.map(token), write: write.map(token), names: Vec::new() };
            for (shown, expected) in [reads, writes].into_iter().zip(expected) {
                let headers = headers(shown);
                let found = (status(access.refusal(&headers)), status(access.write_refusal(&headers)));
                assert_eq!(found, expected, "{shown} of {read:?} {write:?}");
            }
            assert!(access.write_refusal(&HeaderMap::new()).is_some());
        }
        let nobody = AdminAccess::NoClient;
        assert_eq!(status(nobody.write_refusal(&headers(writes))), Some(403));
    }
}
