//! The rules about header fields and the target that hold for every request. The rules for responses are in `upstream`.

use std::net::IpAddr;

use hapax::http::headers::RESERVED_PREFIX;
use http::header::{COOKIE, HOST, HeaderName, TE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::gateway::ingress::field_names::{ProtectedFields, is_for_proxies};
use crate::gateway::ingress::refusal::Refusal;
use crate::gateway::limits::{HEAD_BYTES, HEAD_FIELDS};
use crate::upstream::fields::{OtherCoding, is_chunked, named_by_connection, remove_unforwardable};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The client of a connection, as the `X-Forwarded-*` fields name it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    ip: HeaderValue,
    scheme: HeaderValue,
    /// Whether it is a proxy whose word about its clients counts.
    is_trusted: bool,
}

impl Peer {
    pub(crate) fn new(ip: IpAddr, scheme: &'static str, is_trusted: bool) -> Self {
        let ip = HeaderValue::try_from(ip.to_string()).expect("an address is a valid field value");
        Self { ip, scheme: HeaderValue::from_static(scheme), is_trusted }
    }
}

/// Checks a request and rewrites its target and fields for the API. Returns the first field about another client that
/// was replaced, because this client is not a trusted proxy.
pub(crate) fn admit<B>(
    request: &mut Request<B>,
    protected: &ProtectedFields,
    peer: &Peer,
) -> Result<Option<HeaderName>, Refusal> {
    if request.method() == Method::CONNECT {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported"));
    }
    if request.method().as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        // Some services read `post` as POST, and here it would not be protected.
        return Err(Refusal::bad_request("the method has a lower-case letter; methods are upper case"));
    }
    if request.version() == Version::HTTP_2 {
        join_cookies(request.headers_mut());
    }
    check_size(request)?;
    check_fields(request.headers(), protected)?;
    // Reads the authority of the target, which the next line removes.
    let host = host(request)?;
    *request.uri_mut() = origin_form(request)?;
    let headers = request.headers_mut();
    let takes_trailers = takes_trailers(headers);
    let is_replaced = |name: &HeaderName| !peer.is_trusted && is_for_proxies(name);
    let replaced = headers.keys().find(|name| is_replaced(name)).cloned();
    remove_unforwardable(headers, |name| {
        name.as_str().starts_with(RESERVED_PREFIX) || protected.is_dropped(name) || is_replaced(name)
    });
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // A list, whose last address is from here, whoever sent the others.
    append(headers, FORWARDED_FOR, &peer.ip);
    append(headers, FORWARDED_PROTO, &peer.scheme);
    if let Some(host) = host {
        append(headers, FORWARDED_HOST, &host);
        headers.insert(HOST, host);
    }
    Ok(replaced)
}

/// Whether the client takes trailers. The field that says so belongs to one connection (RFC 9110, 10.1.4), and is set
/// anew for the next one.
fn takes_trailers(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(TE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// Joins the pieces of a cookie, which HTTP/2 may send as one field each (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() > 1 {
        let joined = HeaderValue::from_bytes(&pieces.join(&b"; "[..])).expect("joined field values are a field value");
        headers.insert(COOKIE, joined);
    }
}

/// hyper checks both limits for HTTP/1, but only the length for HTTP/2.
fn check_size<B>(request: &Request<B>) -> Result<(), Refusal> {
    let too_large = |detail| Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    if head_bytes(request) > HEAD_BYTES {
        return too_large(format!("the head of the request is longer than {HEAD_BYTES} bytes"));
    }
    if request.headers().len() > HEAD_FIELDS {
        return too_large(format!("the head of the request has more than {HEAD_FIELDS} fields"));
    }
    Ok(())
}

/// Refuses a request that the gateway and the API could read differently.
fn check_fields(headers: &HeaderMap, protected: &ProtectedFields) -> Result<(), Refusal> {
    if let Some(name) = named_by_connection(headers).find(|name| protected.contains(name)) {
        return Err(Refusal::bad_request(format!("a Connection field must not name {}", name.to_ascii_lowercase())));
    }
    if let Some(name) = headers.keys().find(|name| protected.is_imitated_by(name)) {
        let detail = format!("{name} differs from a field that matters only in an underscore or a hyphen");
        return Err(Refusal::bad_request(detail));
    }
    // hyper decodes the last coding only, and the API would get the body with the others.
    is_chunked(headers).map(drop).map_err(|OtherCoding| {
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "the only transfer coding of a request is `chunked`")
    })
}

/// Roughly the length of the head on the wire. hyper's own limit depends on how much it reads at once; this one does
/// not.
fn head_bytes<B>(request: &Request<B>) -> usize {
    // Each field has four more bytes on the wire: a colon, a space and the line end.
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + target
}

/// The host of a request: the authority of its target, else its Host field. A request of HTTP/1.0 may have neither.
fn host<B>(request: &Request<B>) -> Result<Option<HeaderValue>, Refusal> {
    let mut fields = request.headers().get_all(HOST).iter();
    let field = match (fields.next(), fields.next()) {
        // HTTP/2 names the host in the target, and HTTP/1.0 may name none.
        (None, _) if request.version() == Version::HTTP_11 => {
            return Err(Refusal::bad_request("a Host field is missing"));
        }
        (field, None) => field,
        (_, Some(_)) => return Err(Refusal::bad_request("there is more than one Host field")),
    };
    let Some(authority) = request.uri().authority() else {
        return field.map(valid_host).transpose();
    };
    if authority.as_str().contains('@') {
        return Err(Refusal::bad_request("the target of a request must not contain credentials"));
    }
    Ok(Some(HeaderValue::try_from(authority.as_str()).expect("an authority is a valid field value")))
}

/// An empty Host field is valid (RFC 9112, 3.2).
fn valid_host(field: &HeaderValue) -> Result<HeaderValue, Refusal> {
    // A field that is not ASCII text counts as malformed, as does one with credentials (`user@host`).
    let text = field.to_str().unwrap_or("@");
    if text.contains('@') || !(text.is_empty() || text.parse::<Authority>().is_ok()) {
        return Err(Refusal::bad_request("the Host field is malformed"));
    }
    Ok(field.clone())
}

/// The target in the form for a server: path and query only, or `*`.
fn origin_form<B>(request: &Request<B>) -> Result<Uri, Refusal> {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let is_asterisk = path.as_str() == "*" && request.method() == Method::OPTIONS;
    if !path.as_str().starts_with('/') && !is_asterisk {
        return Err(Refusal::bad_request("the target of the request is not a path"));
    }
    Ok(Uri::from(path))
}

/// Appends a value to the list of earlier proxies and joins all lines into one field, because servers read several
/// lines differently.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let mut fields: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    let mut joined = value.clone();
    if !fields.is_empty() {
        fields.push(value.as_bytes());
        joined = HeaderValue::from_bytes(&fields.join(&b", "[..]))
            .expect("field values joined by commas are a valid field value");
    }
    headers.insert(name, joined);
}

#[cfg(test)]
mod tests {
    use http::header::FORWARDED;

    use super::*;

    fn request(target: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::post(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn admitted(request: Request<()>) -> Result<Request<()>, Refusal> {
        admitted_from(request, false).map(|(request, _)| request)
    }

    fn admitted_from(mut request: Request<()>, is_trusted: bool) -> Result<(Request<()>, Option<HeaderName>), Refusal> {
        let protected = ProtectedFields::with(Some(HeaderName::from_static("x-account")));
        let replaced = admit(&mut request, &protected, &Peer::new([127, 0, 0, 1].into(), "http", is_trusted))?;
        Ok((request, replaced))
    }

    #[test]
    fn hop_by_hop_and_reserved_fields_are_removed() {
        let request = request(
            "/",
            &[
                ("host", "a"),
                ("connection", "keep-alive, X-Private"),
                ("connection", "x-other"),
                ("x-private", "1"),
                ("x-other", "1"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "websocket"),
                ("te", "trailers"),
                ("hapax-token", "99"),
                ("idempotency-key", "k"),
                ("content-type", "text/plain"),
            ],
        );
        let admitted = admitted(request).unwrap();
        let mut names: Vec<_> = admitted.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let forwarded = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
        assert_eq!(names, [&["content-type", "host", "idempotency-key", "te"][..], &forwarded].concat());
    }

    #[test]
    fn a_method_in_lower_case_is_refused_h36() {
        for (method, is_admitted) in [("POST", true), ("M-SEARCH", true), ("post", false), ("Post", false)] {
            let mut request = request("/", &[("host", "a")]);
            *request.method_mut() = method.parse().unwrap();
            assert_eq!(admitted(request).is_ok(), is_admitted, "{method}");
        }
    }

    #[test]
    fn a_connection_field_that_names_a_protected_field_is_refused() {
        for name in ["Authorization", "idempotency-key", "X-Account", "HAPAX-Anything", "close , host", "cookie"] {
            let refusal = admitted(request("/", &[("host", "a"), ("connection", name)])).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{name}");
        }
        admitted(request("/", &[("host", "a"), ("connection", "close, x-accounts, hapax")])).unwrap();
    }

    #[test]
    fn forwarded_fields_are_set_here_and_cannot_be_removed() {
        let fields = [
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("connection", "X-Forwarded-Proto"),
            ("x-forwarded-proto", "https"),
        ];
        for is_trusted in [false, true] {
            let (admitted, replaced) = admitted_from(request("/", &fields), is_trusted).unwrap();
            let field = |name| admitted.headers()[name].to_str().unwrap();
            assert_eq!(field(FORWARDED_FOR), "10.0.0.1, 10.0.0.2, 127.0.0.1");
            assert_eq!(
                (field(FORWARDED_PROTO), field(FORWARDED_HOST), field(HOST)),
                ("http", "shop.example", "shop.example")
            );
            assert_eq!(replaced.is_some(), !is_trusted);
        }
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_about_its_clients_h58() {
        let fields = [
            ("host", "shop.example"),
            ("forwarded", "for=1.2.3.4;proto=https"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-prefix", "/admin"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let (admitted, replaced) = admitted_from(request("/", &fields), false).unwrap();
        let mut names: Vec<_> = admitted.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]);
        assert_eq!((&admitted.headers()[FORWARDED_PROTO], replaced), (&"http".parse().unwrap(), Some(FORWARDED)));
        let (admitted, replaced) = admitted_from(request("/", &fields), true).unwrap();
        for (name, value) in fields {
            let got = admitted.headers()[name].to_str().unwrap();
            assert!(got.starts_with(value), "{name}: {got}");
        }
        assert_eq!((&admitted.headers()[FORWARDED_PROTO], replaced), (&"https, http".parse().unwrap(), None));
        let plain = [("host", "shop.example"), ("x-forwarded-for", "10.0.0.1"), ("x-forwarded", "1")];
        assert_eq!(admitted_from(request("/", &plain), false).unwrap().1, None);
    }

    #[test]
    fn a_request_has_exactly_one_host() {
        let target = admitted(request("http://b.example:81/p?q", &[("host", "a")])).unwrap();
        assert_eq!(
            (&target.headers()[HOST], target.uri()),
            (&"b.example:81".parse().unwrap(), &"/p?q".parse::<Uri>().unwrap())
        );
        for fields in
            [&[][..], &[("host", "a"), ("host", "a")], &[("host", "a b")], &[("host", "u@a")], &[("host", "a/b")]]
        {
            assert_eq!(admitted(request("/", fields)).unwrap_err().status, StatusCode::BAD_REQUEST, "{fields:?}");
        }
        assert!(admitted(request("http://u:p@a/", &[("host", "a")])).is_err());
    }

    #[test]
    fn a_target_must_be_a_path() {
        for (method, target, is_admitted) in
            [("OPTIONS", "*", true), ("POST", "*", false), ("CONNECT", "a:1", false), ("GET", "http://a", true)]
        {
            let request = Request::builder().method(method).uri(target).header("host", "a").body(()).unwrap();
            assert_eq!(admitted(request).is_ok(), is_admitted, "{method} {target}");
        }
    }
}
