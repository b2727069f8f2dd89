//! Lends the library of the credentials our HTTP client, clock and sleep.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_smithy_async::rt::sleep::{AsyncSleep, Sleep};
use aws_smithy_async::time::TimeSource;
use aws_smithy_runtime_api::client::http::{
    HttpClient as LentClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use hapax_core::runtime::Runtime;
use parking_lot::Mutex;

use crate::http::{HttpClient, RequestFailure};

/// How long a request may take if the library does not say it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The HTTP client.
#[derive(Clone, Debug)]
pub(super) struct LentHttp {
    http: HttpClient,
    limit: Duration,
}

impl LentHttp {
    pub(super) fn new(http: HttpClient) -> Self {
        Self { http, limit: PATIENCE }
    }
}

impl LentClient for LentHttp {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        // The metadata service of a machine that is none of AWS never answers, so its limit is short.
        let limits = [settings.connect_timeout(), settings.read_timeout()];
        let limit = limits.into_iter().flatten().reduce(|sum, limit| sum + limit).unwrap_or(PATIENCE);
        SharedHttpConnector::new(Self { http: self.http.clone(), limit })
    }
}

impl HttpConnector for LentHttp {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Self { http, limit } = self.clone();
        HttpConnectorFuture::new(async move { exchange(&http, request, limit).await })
    }
}

async fn exchange(http: &HttpClient, request: HttpRequest, limit: Duration) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    // The requests for credentials have no streams.
    let request = request.map(|body| body.bytes().map(Bytes::copy_from_slice).unwrap_or_default());
    let response = http.send_within(request, limit).await.map_err(lent_failure)?;
    HttpResponse::try_from(response.map(SdkBody::from)).map_err(|error| ConnectorError::other(error.into(), None))
}

fn lent_failure(failure: RequestFailure) -> ConnectorError {
    match failure {
        RequestFailure::TimedOut { .. } => ConnectorError::timeout(failure.into()),
        RequestFailure::Unsent(_) | RequestFailure::Cut(_) => ConnectorError::io(failure.into()),
    }
}

/// The clock and the sleep.
#[derive(Clone, Debug)]
pub(super) struct LentRuntime(pub(super) Arc<dyn Runtime>);

impl TimeSource for LentRuntime {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.wall_now().0)
    }
}

impl AsyncSleep for LentRuntime {
    fn sleep(&self, duration: Duration) -> Sleep {
        // The library wants to share the future between threads; only one of them polls it.
        let mut sleep = Mutex::new(self.0.sleep(duration));
        Sleep::new(poll_fn(move |context| sleep.get_mut().as_mut().poll(context)))
    }
}
