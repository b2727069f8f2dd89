//! WebSocket: a request of HTTP/1.1 that switches its connection.

use std::any::Any;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use hyper::body::Body;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::upstream::fields::named_by_connection;

/// The only protocol to which a connection switches.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const SWITCH: HeaderValue = HeaderValue::from_static("upgrade");

/// The only version of WebSocket (RFC 6455, 4.1).
const VERSION: &[u8] = b"13";

/// A server shows that it speaks WebSocket by the hash of the client's key and this text (RFC 6455, 1.3).
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The wish of a client to switch its connection to WebSocket, in the extensions of its request.
#[derive(Clone, Debug)]
pub(crate) struct WebSocketWish {
    key: HeaderValue,
    tunnel: TunnelSlot,
}

impl WebSocketWish {
    /// The wish of a request, before the fields that belong to its connection are removed. None if the request does not
    /// ask for WebSocket, or has a body: the bytes of a body and of the new protocol could not be told apart. The
    /// tunnel is put into the slot of the connection if the API agrees.
    pub(crate) fn of<B: Body>(request: &Request<B>, tunnel: &TunnelSlot) -> Option<Self> {
        let headers = request.headers();
        let is_wish = request.method() == Method::GET
            && request.version() == Version::HTTP_11
            && request.body().is_end_stream()
            && !headers.contains_key(TRANSFER_ENCODING)
            && asks_for_websocket(headers);
        if !is_wish || *only(headers, &SEC_WEBSOCKET_VERSION)? != *VERSION {
            return None;
        }
        Some(Self { key: only(headers, &SEC_WEBSOCKET_KEY)?.clone(), tunnel: tunnel.clone() })
    }

    /// Turns the response of an API that switches into that of the client, and keeps the tunnel between both. None if
    /// the API switches to something else, or does not show that it has read the wish: a service that returns fields of
    /// its client's choice must not give the client its connection.
    pub(crate) fn grant<B: From<Bytes>>(self, response: Response<B>) -> Option<Response<B>> {
        let (mut head, _) = response.into_parts();
        let accept = only(&head.headers, &SEC_WEBSOCKET_ACCEPT)?;
        if !is_websocket(&head.headers) || *accept != accept_of(&self.key) {
            return None;
        }
        self.tunnel.0.lock().api = Some(head.extensions.remove()?);
        head.headers.remove(CONTENT_LENGTH);
        Some(Response::from_parts(head, Bytes::new().into()))
    }
}

/// The value by which a server accepts this key.
fn accept_of(key: &HeaderValue) -> String {
    let text = [key.as_bytes(), ACCEPT_SUFFIX].concat();
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text))
}

/// The value of a field that occurs once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Marks the head of a request to the API, or of a response to the client, as a switch.
pub(crate) fn mark_switch(headers: &mut HeaderMap) {
    headers.remove(TE);
    headers.insert(CONNECTION, SWITCH);
    headers.insert(UPGRADE, WEBSOCKET);
}

fn asks_for_websocket(headers: &HeaderMap) -> bool {
    is_websocket(headers) && named_by_connection(headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

/// Whether the one protocol that is named is WebSocket.
fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let first = protocols.next();
    first.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes())) && protocols.next().is_none()
}

/// The sides of a client connection that may switch. hyper hands them over when the connection ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelSlot(Arc<Mutex<TunnelSides>>);

#[derive(Debug, Default)]
struct TunnelSides {
    client: Option<OnUpgrade>,
    api: Option<OnUpgrade>,
    room: Option<TunnelRoom>,
}

/// The room that a tunnel occupies until it ends.
pub(crate) type TunnelRoom = Box<dyn Any + Send + Sync>;

impl TunnelSlot {
    /// Keeps the client's side, if the request has a field `Upgrade`, whatever that names. An earlier request on the
    /// connection has not switched it.
    pub(crate) fn begin_request<B>(&self, request: &mut Request<B>) {
        let client = request.extensions_mut().remove();
        let mut sides = self.0.lock();
        sides.room = None;
        if client.is_some() {
            sides.client = client;
        }
    }

    /// Keeps what the tunnel occupies, if there will be one.
    pub(crate) fn occupy(&self, room: TunnelRoom) {
        self.0.lock().room = Some(room);
    }

    /// The sides of a connection that has ended. None if no request had a field `Upgrade`.
    pub(crate) fn take(&self) -> Option<EndedConnection> {
        let TunnelSides { client, api, room } = std::mem::take(&mut *self.0.lock());
        let client = client?;
        Some(match api {
            Some(api) => EndedConnection::Switched(Tunnel { client, api, _room: room }),
            None => EndedConnection::Unswitched(client),
        })
    }
}

/// A client connection that hyper no longer serves.
#[derive(Debug)]
pub(crate) enum EndedConnection {
    /// The API has switched it to WebSocket.
    Switched(Tunnel),
    /// No request has switched it. hyper leaves its orderly end to the owner of this side.
    Unswitched(OnUpgrade),
}

/// A connection to a client and one to the API that have switched to WebSocket.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) api: OnUpgrade,
    _room: Option<TunnelRoom>,
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[test]
    fn only_websocket_is_asked_for() {
        for (connection, upgrade, expected) in [
            ("Upgrade", &["websocket"][..], true),
            ("keep-alive, upgrade", &["WebSocket"], true),
            ("keep-alive", &["websocket"], false),
            ("upgrade", &["h2c"], false),
            ("upgrade", &["websocket", "h2c"], false),
            ("upgrade", &["websocket, h2c"], false),
            ("upgrade", &[], false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(connection));
            for protocol in upgrade {
                headers.append(UPGRADE, HeaderValue::from_static(protocol));
            }
            assert_eq!(asks_for_websocket(&headers), expected, "{connection} {upgrade:?}");
        }
    }

    #[test]
    fn a_key_is_accepted_by_its_hash() {
        // The example of RFC 6455, section 1.3.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept_of(&key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    fn wish(method: Method, fields: &[(HeaderName, &'static str)], body: &'static str) -> Option<WebSocketWish> {
        let mut request = Request::new(Full::<Bytes>::from(body));
        *request.method_mut() = method;
        request
            .headers_mut()
            .extend(fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))));
        WebSocketWish::of(&request, &TunnelSlot::default())
    }

    #[test]
    fn a_wish_has_a_key_a_version_and_no_body() {
        let whole = [
            (CONNECTION, "upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        assert!(wish(Method::GET, &whole, "").is_some());
        assert!(wish(Method::POST, &whole, "").is_none());
        assert!(wish(Method::GET, &whole, "body").is_none());
        for left_out in 0..whole.len() {
            let mut fields = whole.to_vec();
            let (name, _) = fields.remove(left_out);
            assert!(wish(Method::GET, &fields, "").is_none(), "without {name}");
        }
        for more in [(TRANSFER_ENCODING, "chunked"), (SEC_WEBSOCKET_VERSION, "13"), (SEC_WEBSOCKET_KEY, "other")] {
            let mut fields = whole.to_vec();
            fields.push(more.clone());
            assert!(wish(Method::GET, &fields, "").is_none(), "{more:?}");
        }
    }
}
