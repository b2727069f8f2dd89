pub(crate) mod pattern;
pub(crate) mod published;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{self, MapOk, Ready, ready};
use hapax::BoxError;
use hapax::http::{IdempotencyLayer, PolicyPage, RequestBody, ResponseBody};
use hapax::runtime::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Body;
use serde_json::json;
use tower_layer::Layer;
use tower_service::Service;

use crate::gateway::routing::pattern::{Path, Pattern, Reading};

/// Gives each request the contract of its route: the first that is named for it, or the one for all others.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    routes: Arc<[RouteLayer]>,
    others: IdempotencyLayer,
}

/// Requests of these methods to these paths, and what protects them.
#[derive(Clone, Debug)]
pub(crate) struct RouteLayer {
    pub(crate) methods: Vec<Method>,
    pub(crate) pattern: Pattern,
    /// One that protects no method, where they stream past.
    pub(crate) layer: IdempotencyLayer,
    pub(crate) is_protected: bool,
}

impl Routes {
    pub(crate) fn new(routes: Vec<RouteLayer>, others: IdempotencyLayer) -> Self {
        Self { routes: routes.into(), others }
    }

    /// The page that says all of this.
    pub(crate) fn page(&self) -> PolicyPage {
        self.routes.iter().fold(self.others.page(), |page, way| {
            let path = way.pattern.to_string();
            if way.is_protected { page.route(&path, &way.layer) } else { page.unprotected_route(&path, &way.methods) }
        })
    }

    /// What protects this request; nothing if its path can be read in two ways and a route depends on which.
    fn choose(&self, method: &Method, path: &str) -> Option<&IdempotencyLayer> {
        let mut ways = self.routes.iter().filter(|way| way.methods.contains(method)).peekable();
        if ways.peek().is_some() {
            let path = Path::read(path);
            for way in ways {
                match path.is(&way.pattern) {
                    Reading::Matches => return Some(&way.layer),
                    Reading::Ambiguous => return None,
                    Reading::Differs => {}
                }
            }
        }
        Some(&self.others)
    }
}

impl<S> Layer<S> for Routes {
    type Service = Routed<S>;

    fn layer(&self, inner: S) -> Routed<S> {
        Routed { routes: self.clone(), inner }
    }
}

/// The service that [`Routes`] makes.
#[derive(Clone, Debug)]
pub(crate) struct Routed<S> {
    routes: Routes,
    inner: S,
}

type Protected<R, E> = BoxFuture<'static, Result<Response<ResponseBody<R>>, E>>;

/// How an answer from behind a route becomes one that may also be a refusal.
type PassedOn<R> = fn(Response<ResponseBody<R>>) -> Response<Either<ResponseBody<R>, Full<Bytes>>>;

impl<S, B, R> Service<Request<B>> for Routed<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<Either<ResponseBody<R>, Full<Bytes>>>;
    type Error = S::Error;
    type Future = future::Either<Ready<Result<Self::Response, S::Error>>, MapOk<Protected<R, S::Error>, PassedOn<R>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(layer) = self.routes.choose(request.method(), request.uri().path()) else {
            return future::Either::Left(ready(Ok(ambiguous().map(Either::Right))));
        };
        // The service that was polled ready is the one to call; its clone waits for its own turn.
        let clone = self.inner.clone();
        let polled = std::mem::replace(&mut self.inner, clone);
        future::Either::Right(layer.layer(polled).call(request).map_ok(|response| response.map(Either::Left)))
    }
}

/// Said in the words of the contract, but no problem of it: it comes before any key is looked at.
fn ambiguous() -> Response<Full<Bytes>> {
    let document = json!({
        "type": "about:blank",
        "title": "The path is ambiguous",
        "status": 400,
        "detail": "The path has an encoded slash, a dot segment or a doubled slash, and another contract would hold without it. Nothing was done; write it plainly.",
        "retry": "new-key",
    });
    let mut response = Response::new(Full::from(document.to_string()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
