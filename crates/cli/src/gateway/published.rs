use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::http::{PAGE, PolicyPage};
use hapax::runtime::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{Either, Full};
use tower_service::Service;

/// Answers for the page on which the contract is published, and passes everything else on.
#[derive(Clone, Debug)]
pub(crate) struct Published<S> {
    /// Shared: the service is cloned for every request.
    page: Arc<PolicyPage>,
    inner: S,
}

impl<S> Published<S> {
    pub(crate) fn new(page: PolicyPage, inner: S) -> Self {
        Self { page: Arc::new(page), inner }
    }
}

impl<S, B, R> Service<Request<B>> for Published<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.uri().path() == PAGE && matches!(*request.method(), Method::GET | Method::HEAD) {
            let response = self.page.response(request.headers());
            return Box::pin(async { Ok(response.map(|body| Either::Right(Full::new(body)))) });
        }
        let answered = self.inner.call(request);
        Box::pin(async { Ok(answered.await?.map(Either::Left)) })
    }
}
