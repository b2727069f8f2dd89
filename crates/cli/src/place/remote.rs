use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use hapax::runtime::Tokio;
use hapax_net::http::{HttpClient, HttpSettings};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, Uri};
use serde::de::DeserializeOwned;

use crate::admin::api::ApiError;
use crate::admin::api::calls::{ApiCall, PREFIX, SentCall};
use crate::config::AdminToken;
use crate::serve::exit::CommandError;
use crate::tls;

/// The admin API of a process.
#[derive(Debug)]
pub(super) struct AdminClient {
    address: String,
    authorization: Option<HeaderValue>,
    client: HttpClient,
}

/// How long one request may take: a little longer than the process waits for its store.
const DEADLINE: Duration = Duration::from_secs(30);

/// How much of a response is read.
const LARGEST: usize = 16 << 20;

impl AdminClient {
    pub(super) fn new(url: &Uri, token_file: Option<&Path>) -> Result<Self, CommandError> {
        let place = url.scheme_str().filter(|scheme| ["http", "https"].contains(scheme)).zip(url.authority());
        let Some((scheme, authority)) = place.filter(|_| matches!(url.path(), "" | "/")) else {
            return Err(CommandError::usage(anyhow!("--admin takes http://HOST:PORT or https://HOST:PORT")));
        };
        let token = token_file.map(|path| AdminToken::read(path).context("--admin-token-file")).transpose();
        let token = token.map_err(CommandError::usage)?;
        let tls = (scheme == "https").then(|| tls::client_config(None, None)).transpose();
        let settings = HttpSettings {
            tls: tls.map_err(CommandError::cannot_start)?,
            time_limit: DEADLINE,
            max_body: LARGEST,
            ..HttpSettings::new(Arc::new(Tokio::current()))
        };
        Ok(Self {
            address: format!("{scheme}://{authority}{PREFIX}"),
            authorization: token.map(|token| token.authorization()),
            client: HttpClient::new(settings).map_err(CommandError::cannot_start)?,
        })
    }

    /// Sends a call. The inner error is the refusal of the process.
    pub(super) async fn send<C: ApiCall>(&self, call: &C) -> Result<Result<C::Answer, ApiError>, CommandError> {
        let SentCall { target, body } = SentCall::of(call);
        let request = Request::builder().uri(format!("{}{target}", self.address));
        let request = match body {
            None => request,
            Some(_) => request.method("POST").header(CONTENT_TYPE, "application/json"),
        };
        let authorization = self.authorization.iter();
        let request = authorization.fold(request, |request, value| request.header(AUTHORIZATION, value));
        let request = request.body(body.unwrap_or_default().into()).map_err(CommandError::usage)?;
        let answered = self.exchange(request).await.context("the admin API cannot be asked");
        answered.map_err(CommandError::cannot_start)
    }

    async fn exchange<A: DeserializeOwned>(&self, request: Request<Bytes>) -> anyhow::Result<Result<A, ApiError>> {
        let (head, body) = self.client.send(request).await?.into_parts();
        if head.status.is_success() {
            return Ok(Ok(serde_json::from_slice(&body).context("the answer is not one of this API")?));
        }
        if let Ok(refusal) = serde_json::from_slice::<ApiError>(&body) {
            return Ok(Err(ApiError { status: head.status, ..refusal }));
        }
        // Refusals before the API, and other servers, answer with text.
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        Err(anyhow!("status {}: {}", head.status.as_u16(), text.trim()))
    }
}
