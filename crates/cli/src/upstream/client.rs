//! The connections to the API, in the version of HTTP that it speaks.

use std::time::Duration;

use bytes::Bytes;
use hapax::http::RequestBody;
use http::header::{CONNECTION, HOST, TE, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::Body;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;

use crate::upstream::SendError;
use crate::upstream::body::{UpstreamBody, UpstreamContent};
use crate::upstream::forward::StreamedBody;
use crate::upstream::http1::Http1;
use crate::upstream::http2::Http2;
use crate::upstream::websocket::mark_switch;

/// The API: its scheme, its authority, and whether it speaks HTTP/2 without TLS.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) is_h2: bool,
}

impl Upstream {
    fn uri(&self, authority: &Authority, path: PathAndQuery) -> Uri {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(authority.clone()).path_and_query(path);
        uri.build().expect("a scheme, an authority and a path make a URI")
    }
}

/// The connections to the API, in the version of HTTP that it speaks. Generic in the streamed body of the request.
#[derive(Debug)]
pub(crate) struct UpstreamClient<B> {
    http1: Http1<B>,
    /// None for an API that speaks only HTTP/1.1.
    http2: Option<Http2<B>>,
    upstream: Upstream,
    /// The host of the API, for a request of HTTP/1.0 without a Host field.
    host: HeaderValue,
}

impl<B: StreamedBody> UpstreamClient<B> {
    pub(crate) fn new(upstream: Upstream, tls: &ClientConfig, connect_timeout: Duration) -> Self {
        let connector = || {
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(connect_timeout));
            // Without this, the connector would refuse https URLs. The connector around it adds TLS.
            connector.enforce_http(false);
            connector
        };
        let target = upstream.uri(&upstream.authority, PathAndQuery::from_static("/"));
        let http1_connector = with_tls(tls).enable_http1().wrap_connector(connector());
        let http1 = Http1::new(http1_connector, target.clone(), connect_timeout);
        let may_be_h2 = upstream.is_h2 || upstream.scheme == Scheme::HTTPS;
        let http2 = may_be_h2.then(|| {
            let connector = with_tls(tls).enable_all_versions().wrap_connector(connector());
            Http2::new(connector, target, connect_timeout)
        });
        let host = HeaderValue::from_str(upstream.authority.as_str()).expect("an authority is a valid field value");
        Self { http1, http2, upstream, host }
    }

    /// Sends a request with the target in origin form. The frames of the response have no time limit yet.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody<B>>,
    ) -> Result<Response<UpstreamBody<B>>, SendError> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        if let Some(http2) = &self.http2 {
            let host = request.headers_mut().remove(HOST);
            *request.uri_mut() = self.upstream.uri(&self.authority(host.as_ref()), path.clone());
            *request.version_mut() = Version::HTTP_2;
            // Boxed: this future is four times as large as the rest, and most APIs do not need it.
            match Box::pin(http2.send(request)).await {
                Ok(sent) => {
                    let (response, slot) = sent?;
                    return Ok(response.map(|body| UpstreamContent::Http2 { body, _slot: slot }.into()));
                }
                Err(unsent) => request = unsent,
            }
            request.headers_mut().extend(host.map(|host| (HOST, host)));
        }
        self.prepare_http1(&mut request, path);
        if request.headers().contains_key(TE) {
            // The field belongs to one connection (RFC 9110, 10.1.4).
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if has_unknown_length(request.body()) {
            // hyper would leave out the body of a GET or HEAD whose length is unknown, unless its framing is given.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let (response, connection) = self.http1.send(request).await?;
        Ok(response.map(|body| UpstreamContent::Http1 { body, connection }.into()))
    }

    /// Whether the API can switch a connection to WebSocket: it speaks HTTP/1.1.
    pub(crate) fn can_switch(&self) -> bool {
        !self.upstream.is_h2
    }

    /// Sends a request that asks for a switch to WebSocket, over HTTP/1.1.
    pub(crate) async fn send_switch(
        &self,
        mut request: Request<RequestBody<B>>,
    ) -> Result<Response<UpstreamBody<B>>, SendError> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        self.prepare_http1(&mut request, path);
        mark_switch(request.headers_mut());
        let (response, connection) = self.http1.send_switch(request).await?;
        Ok(response.map(|body| UpstreamContent::Http1 { body, connection }.into()))
    }

    fn prepare_http1(&self, request: &mut Request<RequestBody<B>>, path: PathAndQuery) {
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
    }

    /// The client's Host field. HTTP/2 has it in the target of the request.
    fn authority(&self, host: Option<&HeaderValue>) -> Authority {
        let requested = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        requested.unwrap_or_else(|| self.upstream.authority.clone())
    }
}

pub(super) fn has_unknown_length<B: Body<Data = Bytes>>(body: &RequestBody<B>) -> bool {
    !body.is_end_stream() && body.size_hint().exact().is_none()
}

fn with_tls(tls: &ClientConfig) -> HttpsConnectorBuilder<WantsProtocols1> {
    HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http()
}
