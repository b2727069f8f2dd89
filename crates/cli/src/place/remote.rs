use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value};

use crate::admin::api::ApiError;
use crate::admin::api::audit::INCOMPLETE;
use crate::admin::api::call::PREFIX;
use crate::config::AdminToken;
use crate::serve::exit::CommandError;

/// The admin API of a process.
#[derive(Debug)]
pub(super) struct AdminClient {
    address: String,
    authorization: Option<HeaderValue>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
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
        let tls = crate::tls::client_config(None, None).map_err(CommandError::cannot_start)?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Self {
            address: format!("{scheme}://{authority}{PREFIX}"),
            authorization: token.map(|token| token.authorization()),
            client: Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    pub(super) async fn get(&self, path: &str, query: &str) -> Result<Result<Value, ApiError>, CommandError> {
        self.send(Request::get(format!("{}{path}?{query}", self.address)), Bytes::new()).await
    }

    pub(super) async fn post(
        &self,
        path: &str,
        body: Map<String, Value>,
    ) -> Result<Result<Value, ApiError>, CommandError> {
        let request = Request::post(format!("{}{path}", self.address)).header(CONTENT_TYPE, "application/json");
        self.send(request, Value::Object(body).to_string().into()).await
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Result<Value, ApiError>, CommandError> {
        let authorization = self.authorization.iter();
        let request = authorization.fold(request, |request, value| request.header(AUTHORIZATION, value));
        let request = request.body(Full::from(body)).map_err(CommandError::usage)?;
        let answered = tokio::time::timeout(DEADLINE, self.exchange(request)).await;
        let answered = answered.unwrap_or_else(|_| Err(anyhow!("it does not answer within {DEADLINE:?}")));
        let context = "the admin API cannot be asked";
        answered.context(context).map_err(CommandError::cannot_start)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Result<Value, ApiError>, anyhow::Error> {
        let (head, body) = self.client.request(request).await?.into_parts();
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| anyhow!(error))?.to_bytes();
        let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
            // Refusals before the API, and other servers, answer with text.
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(anyhow!("status {}: {}", head.status.as_u16(), text.trim()));
        };
        if head.status.is_success() {
            return Ok(Ok(answer));
        }
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let code = KNOWN.into_iter().find(|code| answer["error"] == **code).unwrap_or("failed");
        let detail = text("detail").unwrap_or_else(|| format!("status {}", head.status.as_u16()));
        let record = answer.get("record").cloned();
        Ok(Err(ApiError { command: text("command"), record, ..ApiError::new(head.status, code, detail) }))
    }
}

/// The errors that the command tells apart.
const KNOWN: [&str; 6] = ["stale", "wrong-state", "not-found", "internal-record", "damaged", INCOMPLETE];
