//! WebSocket: a request of HTTP/1.1 that switches its connection.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;

use crate::upstream::fields::named_by_connection;

/// The only protocol to which a connection switches.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const SWITCH: HeaderValue = HeaderValue::from_static("upgrade");

/// The wish of a client to switch its connection to WebSocket, in the extensions of its request.
#[derive(Clone, Debug)]
pub(crate) struct WebSocketWish {
    client: OnUpgrade,
    tunnel: TunnelSlot,
}

impl WebSocketWish {
    /// Takes the wish from a request, before the fields that belong to its connection are removed. None if the request
    /// does not ask for WebSocket. The tunnel is put into the slot of the connection if the API agrees.
    pub(crate) fn take<B>(request: &mut Request<B>, tunnel: &TunnelSlot) -> Option<Self> {
        let is_wish = request.method() == Method::GET && request.version() == Version::HTTP_11;
        if !(is_wish && asks_for_websocket(request.headers())) {
            return None;
        }
        let client = request.extensions_mut().remove::<OnUpgrade>()?;
        Some(Self { client, tunnel: tunnel.clone() })
    }

    /// Turns the response of an API that switches into that of the client, and keeps the tunnel between both. None if
    /// the API switches to something else.
    pub(crate) fn grant<B: From<Bytes>>(self, response: Response<B>) -> Option<Response<B>> {
        let (mut head, _) = response.into_parts();
        if !is_websocket(&head.headers) {
            return None;
        }
        let api = head.extensions.remove::<OnUpgrade>()?;
        *self.tunnel.0.lock() = Some(Tunnel { client: self.client, api });
        head.headers.remove(CONTENT_LENGTH);
        Some(Response::from_parts(head, Bytes::new().into()))
    }
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

/// The tunnel of a client connection, once the API has agreed to one.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelSlot(Arc<Mutex<Option<Tunnel>>>);

impl TunnelSlot {
    pub(crate) fn take(&self) -> Option<Tunnel> {
        self.0.lock().take()
    }
}

/// A connection to a client and one to the API that have switched to WebSocket.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) api: OnUpgrade,
}

#[cfg(test)]
mod tests {
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
}
