//! The rules about header fields that hold on every route, in both directions.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::gateway::ingress::refusal::Refusal;
use crate::gateway::limits::HEAD_BYTES;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What only the gateway may say, whichever side sent it.
const OURS: &str = "hapax-";
const OURS_TO_CLIENTS: [HeaderName; 2] =
    [HeaderName::from_static("idempotent-replayed"), HeaderName::from_static("idempotency-key-expires")];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The fields that a client must not have removed on the way: they say who calls, and for which key.
#[derive(Clone, Debug)]
pub(crate) struct ProtectedFields(Vec<HeaderName>);

impl ProtectedFields {
    /// These beside what every gateway needs.
    pub(crate) fn with(more: impl IntoIterator<Item = HeaderName>) -> Self {
        let always = [AUTHORIZATION, COOKIE, HOST, IDEMPOTENCY_KEY];
        Self(always.into_iter().chain(more).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|kept| name.eq_ignore_ascii_case(kept.as_str()))
            || name.get(..OURS.len()).is_some_and(|start| start.eq_ignore_ascii_case(OURS))
    }
}

/// Where a request came from, in the words of the fields that say so.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    ip: HeaderValue,
    scheme: HeaderValue,
}

impl Peer {
    pub(crate) fn new(ip: IpAddr, scheme: &'static str) -> Self {
        let ip = HeaderValue::try_from(ip.to_string()).expect("an address is a header");
        Self { ip, scheme: HeaderValue::from_static(scheme) }
    }

    pub(crate) fn ip(&self) -> &HeaderValue {
        &self.ip
    }
}

/// Makes of a request as it came one that may go on, or says why it may not.
pub(crate) fn admit<B>(request: &mut Request<B>, kept: &ProtectedFields, peer: &Peer) -> Result<(), Refusal> {
    if request.method() == Method::CONNECT {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "no tunnel is opened"));
    }
    if head_bytes(request) > HEAD_BYTES {
        let detail = format!("the head of the request is longer than {HEAD_BYTES} bytes");
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    }
    if let Some(name) = named_by_connection(request.headers()).find(|name| kept.has(name)) {
        return Err(Refusal::bad(format!("a Connection field must not name {}", name.to_ascii_lowercase())));
    }
    let host = host(request)?;
    *request.uri_mut() = origin(request)?;
    let headers = request.headers_mut();
    strip(headers);
    headers.remove(EXPECT);
    append(headers, FORWARDED_FOR, &peer.ip);
    append(headers, FORWARDED_PROTO, &peer.scheme);
    if let Some(host) = host {
        append(headers, FORWARDED_HOST, &host);
        headers.insert(HOST, host);
    }
    Ok(())
}

/// About its length on the wire: how much of a head is read at once differs, what is taken must not.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + target
}

/// Removes from an answer of the API what is not its to say, and what belongs to its connection.
pub(crate) fn clear_answer(headers: &mut HeaderMap) {
    strip(headers);
    OURS_TO_CLIENTS.iter().for_each(|name| drop(headers.remove(name)));
}

/// Removes what belongs to one connection, and what only the gateway may say.
fn strip(headers: &mut HeaderMap) {
    let named = named_by_connection(headers).filter_map(|name| name.parse().ok());
    let ours = headers.keys().filter(|name| HOP_BY_HOP.contains(name) || name.as_str().starts_with(OURS));
    let gone: Vec<HeaderName> = named.chain(ours.cloned()).collect();
    for name in gone {
        headers.remove(name);
    }
}

/// Fields that are not text name nothing that could be removed.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let fields = headers.get_all(CONNECTION).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(',')).map(str::trim)
}

/// The one host that a request is for: what its target names, else its Host field. HTTP/1.0 may have none.
fn host<B>(request: &Request<B>) -> Result<Option<HeaderValue>, Refusal> {
    let mut fields = request.headers().get_all(HOST).iter();
    let field = match (fields.next(), fields.next()) {
        (None, _) if request.version() == Version::HTTP_11 => return Err(Refusal::bad("a Host field is missing")),
        (field, None) => field,
        (_, Some(_)) => return Err(Refusal::bad("there is more than one Host field")),
    };
    let Some(authority) = request.uri().authority() else {
        return field.map(is_host).transpose();
    };
    if authority.as_str().contains('@') {
        return Err(Refusal::bad("credentials do not belong into the target of a request"));
    }
    Ok(Some(HeaderValue::try_from(authority.as_str()).expect("an authority is a header")))
}

/// An empty Host field is one (RFC 9112, 3.2).
fn is_host(field: &HeaderValue) -> Result<HeaderValue, Refusal> {
    let text = field.to_str().unwrap_or("@");
    if text.contains('@') || !(text.is_empty() || text.parse::<Authority>().is_ok()) {
        return Err(Refusal::bad("the Host field is malformed"));
    }
    Ok(field.clone())
}

/// The target as a server gets it: path and query alone, or `*`.
fn origin<B>(request: &Request<B>) -> Result<Uri, Refusal> {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let is_asterisk = path.as_str() == "*" && request.method() == Method::OPTIONS;
    if !path.as_str().starts_with('/') && !is_asterisk {
        return Err(Refusal::bad("the target of the request is no path"));
    }
    Ok(Uri::from(path))
}

/// At the end of what proxies before us wrote, as one field: a list that several lines continue is read in different ways.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let mut fields: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    let mut all = value.clone();
    if !fields.is_empty() {
        fields.push(value.as_bytes());
        all = HeaderValue::from_bytes(&fields.join(&b", "[..])).expect("header fields and commas make a field");
    }
    headers.insert(name, all);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::post(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn admitted(mut request: Request<()>) -> Result<Request<()>, Refusal> {
        let tenant = HeaderName::from_static("x-account");
        admit(&mut request, &ProtectedFields::with(Some(tenant.clone())), &Peer::new([127, 0, 0, 1].into(), "http"))?;
        Ok(request)
    }

    #[test]
    fn what_belongs_to_a_connection_or_to_the_gateway_is_not_passed_on() {
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
                ("expect", "100-continue"),
                ("te", "trailers"),
                ("hapax-token", "99"),
                ("idempotency-key", "k"),
                ("content-type", "text/plain"),
            ],
        );
        let admitted = admitted(request).unwrap();
        let mut left: Vec<_> = admitted.headers().keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let forwarded = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
        assert_eq!(left, [&["content-type", "host", "idempotency-key"][..], &forwarded].concat());
    }

    #[test]
    fn a_connection_field_cannot_remove_who_calls_or_for_which_key() {
        for name in ["Authorization", "idempotency-key", "X-Account", "HAPAX-Anything", "close , host", "cookie"] {
            let refusal = admitted(request("/", &[("host", "a"), ("connection", name)])).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{name}");
        }
        admitted(request("/", &[("host", "a"), ("connection", "close, x-accounts, hapax")])).unwrap();
    }

    #[test]
    fn what_we_say_of_the_client_stands_at_the_end_and_cannot_be_removed() {
        let fields = [
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("connection", "X-Forwarded-Proto"),
            ("x-forwarded-proto", "https"),
        ];
        let admitted = admitted(request("/", &fields)).unwrap();
        let field = |name| admitted.headers()[name].to_str().unwrap();
        assert_eq!(field(FORWARDED_FOR), "10.0.0.1, 10.0.0.2, 127.0.0.1");
        assert_eq!(
            (field(FORWARDED_PROTO), field(FORWARDED_HOST), field(HOST)),
            ("http", "shop.example", "shop.example")
        );
    }

    #[test]
    fn a_request_is_for_one_host() {
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
    fn a_target_is_a_path() {
        for (method, target, is_taken) in
            [("OPTIONS", "*", true), ("POST", "*", false), ("CONNECT", "a:1", false), ("GET", "http://a", true)]
        {
            let request = Request::builder().method(method).uri(target).header("host", "a").body(()).unwrap();
            assert_eq!(admitted(request).is_ok(), is_taken, "{method} {target}");
        }
    }
}
