//! Asks the processor of the effect which operations it has carried out. docs/reconcile.md is the contract.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use hapax::{OperationId, RecordKey};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::commands::CommandError;

/// How many operations one request names.
pub(super) const ASKED: usize = 100;

/// How long the processor may take for one request.
const DEADLINE: Duration = Duration::from_secs(30);

/// How much of a response is read.
const LARGEST: usize = 1 << 20;

/// The processor of the effect.
#[derive(Debug)]
pub(super) struct EffectProbe {
    uri: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// What the processor knows. It knows nothing of an operation that is in neither set.
#[derive(Debug, Default)]
pub(super) struct KnownEffects {
    pub(super) done: HashSet<OperationId>,
    pub(super) not_done: HashSet<OperationId>,
}

impl EffectProbe {
    pub(super) fn new(uri: &Uri) -> Result<Self, CommandError> {
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(CommandError::usage(anyhow!("--probe takes http://HOST/PATH or https://HOST/PATH")));
        }
        let tls = crate::tls::client_config(None).map_err(CommandError::cannot_start)?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Self { uri: uri.clone(), client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// Asks about the operations of these records, at most [`ASKED`].
    pub(super) async fn ask(&self, records: &[RecordKey]) -> Result<KnownEffects, CommandError> {
        if records.is_empty() {
            return Ok(KnownEffects::default());
        }
        let asked = tokio::time::timeout(DEADLINE, self.send(records)).await;
        let known = asked.unwrap_or_else(|_| Err(anyhow!("it does not answer within {DEADLINE:?}")));
        known.context("the processor behind --probe cannot be asked").map_err(CommandError::cannot_start)
    }

    async fn send(&self, records: &[RecordKey]) -> Result<KnownEffects, anyhow::Error> {
        let operations: Vec<String> = records.iter().map(|rk| rk.operation().to_string()).collect();
        let request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(Full::from(json!({ "operations": operations }).to_string()))?;
        let (head, body) = self.client.request(request).await?.into_parts();
        if head.status != StatusCode::OK {
            bail!("it answers with status {}", head.status.as_u16());
        }
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| anyhow!(error));
        let body = body.context("its answer cannot be read, or is longer than 1 MiB")?.to_bytes();
        read(&serde_json::from_slice(&body).context("its answer is not JSON")?)
    }
}

fn read(answer: &Value) -> Result<KnownEffects, anyhow::Error> {
    let set = |name: &str| {
        let listed =
            answer.get(name).and_then(Value::as_array).with_context(|| format!("its answer has no {name:?}"))?;
        let ids = listed.iter().map(|id| id.as_str().and_then(|id| id.parse().ok()).context("an operation is a UUID"));
        ids.collect::<Result<HashSet<OperationId>, anyhow::Error>>()
    };
    Ok(KnownEffects { done: set("done")?, not_done: set("not_done")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_what_is_done_and_what_is_not() {
        let id = "4bb8a64d-4a7e-8d5e-a4a6-5b3e0b9a8c01";
        let known = read(&json!({ "done": [id], "not_done": [], "more": 1 })).unwrap();
        assert!(known.done.contains(&id.parse().unwrap()) && known.not_done.is_empty());
        for wrong in [json!({}), json!({ "done": [id] }), json!({ "done": ["7"], "not_done": [] }), json!([])] {
            read(&wrong).unwrap_err();
        }
    }
}
