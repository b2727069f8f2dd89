//! Helpers that send requests to a protected service and count its runs.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::store::Memory;
use hapax_core::{BoxError, Gate, Settings, Store};
use hapax_http::{IdempotencyLayer, RequestBody, ResponseBody, Tenant};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};

/// The limit of request bodies and of stored bodies in these tests, in bytes.
pub(crate) const LIMIT: usize = 64;

pub(crate) type InnerResponse = Response<ScriptedBody>;

/// A body that yields its pieces and then ends, fails or hangs.
#[derive(Debug)]
pub(crate) struct ScriptedBody {
    pub(crate) pieces: Vec<&'static str>,
    pub(crate) end: BodyEnd,
}

/// What a body does after its last piece.
#[derive(Debug)]
pub(crate) enum BodyEnd {
    Clean,
    Broken,
    Never,
}

impl From<&'static str> for ScriptedBody {
    fn from(text: &'static str) -> Self {
        Self { pieces: vec![text], end: BodyEnd::Clean }
    }
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        if body.pieces.is_empty() {
            return match body.end {
                BodyEnd::Clean => Poll::Ready(None),
                BodyEnd::Broken => Poll::Ready(Some(Err("the connection broke".into()))),
                BodyEnd::Never => Poll::Pending,
            };
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(body.pieces.remove(0).as_bytes())))))
    }
}

/// A layer over a gate, and a counter of the calls of its inner service.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) layer: IdempotencyLayer,
    pub(crate) runs: Arc<AtomicUsize>,
}

/// A response as the client receives it, with its whole body.
pub(crate) struct ReceivedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ReceivedResponse {
    /// The name of the problem. Panics if the response is not a problem.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let document: serde_json::Value = serde_json::from_slice(&self.body).expect("problem details are JSON");
        assert_eq!(document["status"], self.status.as_u16());
        let name = document["type"].as_str().and_then(|name| name.strip_prefix("/.well-known/idempotency#"));
        name.expect("the type is a fragment of the policy page").to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::over(memory())
    }

    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self::with_settings(store, Settings::default())
    }

    pub(crate) fn with_settings(store: Arc<dyn Store>, settings: Settings) -> Self {
        Self::with_gate(Gate::builder(store, settings).build().expect("the settings are valid"))
    }

    pub(crate) fn with_gate(gate: Gate) -> Self {
        let layer = IdempotencyLayer::new(gate).tenant("it", Tenant::Authorization).expect("a namespace");
        let layer = layer.max_request_body(LIMIT).max_stored_body(LIMIT);
        Self { layer, runs: Arc::default() }
    }

    /// Changes the layer. The store stays the same.
    pub(crate) fn change_layer(mut self, change: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        self.layer = change(self.layer);
        self
    }

    /// Sends a request through the layer to a service that returns this response.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        response: impl FnOnce() -> InnerResponse + Clone + Send + 'static,
    ) -> ReceivedResponse {
        self.send_to(request, move |_| async move { Ok(response()) }).await
    }

    /// Sends a request through the layer to this handler.
    pub(crate) async fn send_to<H, F>(&self, request: Request<Full<Bytes>>, handler: H) -> ReceivedResponse
    where
        H: FnOnce(Request<RequestBody<Full<Bytes>>>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<InnerResponse, Infallible>> + Send + 'static,
    {
        let runs = Arc::clone(&self.runs);
        let inner = service_fn(move |request| {
            runs.fetch_add(1, Ordering::SeqCst);
            handler.clone()(request)
        });
        let response = self.layer.layer(inner).oneshot(request).await.expect("the layer never fails");
        receive(response).await
    }

    /// Sends a request and returns only the head of the response, for a body that does not end.
    pub(crate) async fn head(
        &self,
        request: Request<Full<Bytes>>,
        response: impl FnOnce() -> InnerResponse + Clone + Send + 'static,
    ) -> http::response::Parts {
        let inner = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
            let response = response.clone();
            async move { Ok::<_, Infallible>(response()) }
        });
        self.layer.layer(inner).oneshot(request).await.expect("the layer never fails").into_parts().0
    }

    /// Waits until the first handler of this world has started. In a world that already ran a handler it returns at
    /// once.
    pub(crate) async fn wait_for_handler(&self) {
        while self.runs() == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// How often the inner service was called by `send` and `send_to`.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

async fn receive(response: Response<ResponseBody<ScriptedBody>>) -> ReceivedResponse {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the layer returns whole bodies").to_bytes();
    ReceivedResponse { status: head.status, headers: head.headers, body }
}

/// An empty store.
pub(crate) fn memory() -> Arc<Memory> {
    Arc::new(Memory::new())
}

/// A protected request of the tenant `Bearer a`.
pub(crate) fn post(key: &str, body: &'static str) -> Request<Full<Bytes>> {
    let builder = Request::post("/charges").header("authorization", "Bearer a").header("idempotency-key", key);
    builder.header("content-type", "application/json").body(Full::from(body)).expect("a request")
}

/// 201 with one header that is recorded (`Location`) and one that is not (`Set-Cookie`).
pub(crate) fn created(body: &'static str) -> InnerResponse {
    Response::builder()
        .status(201)
        .header("location", "/charges/1")
        .header("set-cookie", "s=1")
        .body(body.into())
        .expect("a response")
}

pub(crate) fn status(status: u16) -> InnerResponse {
    Response::builder().status(status).body("text".into()).expect("a response")
}
