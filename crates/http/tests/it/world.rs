//! A service that counts its runs, and requests to it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::store::Memory;
use hapax_core::{BoxError, Gate, Identity, Settings, Store};
use hapax_http::{IdempotencyLayer, RequestBody, ResponseBody, Tenant, TenantScope};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};

/// How many bytes of a request and of an answer the layer takes in these tests.
pub(crate) const LIMIT: usize = 64;

pub(crate) type Answer = Response<Scripted>;

/// A body that gives its pieces and then ends, or fails.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) pieces: Vec<&'static str>,
    pub(crate) end: End,
}

/// How a body ends.
#[derive(Debug)]
pub(crate) enum End {
    Clean,
    Broken,
    Never,
}

impl From<&'static str> for Scripted {
    fn from(text: &'static str) -> Self {
        Self { pieces: vec![text], end: End::Clean }
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        if body.pieces.is_empty() {
            return match body.end {
                End::Clean => Poll::Ready(None),
                End::Broken => Poll::Ready(Some(Err("the connection broke".into()))),
                End::Never => Poll::Pending,
            };
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(body.pieces.remove(0).as_bytes())))))
    }
}

/// A gate, and how often the service behind it ran.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) layer: IdempotencyLayer,
    pub(crate) runs: Arc<AtomicUsize>,
}

pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let document: serde_json::Value = serde_json::from_slice(&self.body).expect("problem details are JSON");
        assert_eq!(document["status"], self.status.as_u16());
        let name = document["type"].as_str().and_then(|name| name.strip_prefix("/.well-known/idempotency#"));
        name.expect("the type is one of ours").to_owned()
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(memory())
    }

    /// On this store.
    pub(crate) fn on(store: Arc<dyn Store>) -> Self {
        Self::under(store, Settings::default())
    }

    pub(crate) fn under(store: Arc<dyn Store>, settings: Settings) -> Self {
        Self::of(Gate::builder(store, settings).build().expect("the settings are sound"))
    }

    pub(crate) fn of(gate: Gate) -> Self {
        let scope = TenantScope::new("it", Tenant::Authorization, Identity::plain()).expect("a namespace");
        let layer = IdempotencyLayer::new(gate).scope(scope).max_request_body(LIMIT).max_stored_body(LIMIT);
        Self { layer, runs: Arc::default() }
    }

    /// The same store, under another contract.
    pub(crate) fn with(mut self, change: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        self.layer = change(self.layer);
        self
    }

    /// Sends a request through the layer to a service that answers as scripted.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        answer: impl FnOnce() -> Answer + Clone + Send + 'static,
    ) -> Got {
        self.send_to(request, move |_| async move { Ok(answer()) }).await
    }

    pub(crate) async fn send_to<H, F>(&self, request: Request<Full<Bytes>>, handler: H) -> Got
    where
        H: FnOnce(Request<RequestBody<Full<Bytes>>>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Answer, Infallible>> + Send + 'static,
    {
        let runs = Arc::clone(&self.runs);
        let inner = service_fn(move |request| {
            runs.fetch_add(1, Ordering::SeqCst);
            handler.clone()(request)
        });
        let response = self.layer.layer(inner).oneshot(request).await.expect("the layer never fails");
        got(response).await
    }

    /// The head alone of the answer to a request.
    pub(crate) async fn head(
        &self,
        request: Request<Full<Bytes>>,
        answer: impl FnOnce() -> Answer + Clone + Send + 'static,
    ) -> http::response::Parts {
        let inner = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
            let answer = answer.clone();
            async move { Ok::<_, Infallible>(answer()) }
        });
        self.layer.layer(inner).oneshot(request).await.expect("the layer never fails").into_parts().0
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

async fn got(response: Response<ResponseBody<Scripted>>) -> Got {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("what is given out is whole").to_bytes();
    Got { status: head.status, headers: head.headers, body }
}

/// An empty store.
pub(crate) fn memory() -> Arc<Memory> {
    Arc::new(Memory::new())
}

/// A protected request of one tenant.
pub(crate) fn post(key: &str, body: &'static str) -> Request<Full<Bytes>> {
    let builder = Request::post("/charges").header("authorization", "Bearer a").header("idempotency-key", key);
    builder.header("content-type", "application/json").body(Full::from(body)).expect("a request")
}

pub(crate) fn created(body: &'static str) -> Answer {
    Response::builder()
        .status(201)
        .header("location", "/charges/1")
        .header("set-cookie", "s=1")
        .body(body.into())
        .expect("a response")
}

pub(crate) fn status(status: u16) -> Answer {
    Response::builder().status(status).body("told".into()).expect("a response")
}
