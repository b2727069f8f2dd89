use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use hapax::runtime::Tokio;
use hapax_net::http::{HttpClient, HttpSettings};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, Uri};
use serde_json::{Map, Value};

use crate::admin::api::ApiError;
use crate::admin::api::audit::INCOMPLETE;
use crate::admin::api::call::PREFIX;
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
        let request = request.body(body).map_err(CommandError::usage)?;
        let context = "the admin API cannot be asked";
        self.exchange(request).await.context(context).map_err(CommandError::cannot_start)
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Result<Value, ApiError>, anyhow::Error> {
        let (head, body) = self.client.send(request).await?.into_parts();
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
