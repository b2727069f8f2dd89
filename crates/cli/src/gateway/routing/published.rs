use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{self, MapOk, Ready, ready};
use hapax::http::{PAGE, PolicyPage};
use http::{Method, Request, Response};
use http_body_util::{Either, Full};
use tower_service::Service;

/// Answers for the page on which the contract is published, and passes everything else on.
#[derive(Clone, Debug)]
pub(crate) struct Published<S> {
    /// ConnectionSettings: the service is cloned for every request.
    page: Arc<PolicyPage>,
    inner: S,
}

impl<S> Published<S> {
    pub(crate) fn new(page: PolicyPage, inner: S) -> Self {
        Self { page: Arc::new(page), inner }
    }
}

/// How an answer that is passed on becomes one that may also be the page.
type PassedOn<R> = fn(Response<R>) -> Response<Either<R, Full<Bytes>>>;

impl<S, B, R> Service<Request<B>> for Published<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = S::Error;
    type Future = future::Either<Ready<Result<Self::Response, S::Error>>, MapOk<S::Future, PassedOn<R>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.uri().path() == PAGE && matches!(*request.method(), Method::GET | Method::HEAD) {
            let response = self.page.response(request.headers());
            return future::Either::Left(ready(Ok(response.map(|body| Either::Right(Full::new(body))))));
        }
        future::Either::Right(self.inner.call(request).map_ok(|response| response.map(Either::Left)))
    }
}
