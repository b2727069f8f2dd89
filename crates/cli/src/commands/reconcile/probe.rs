//! Asks the processor of the effect which operations it has carried out. docs/reconcile.md is the contract.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hapax::OperationId;
use hapax::runtime::Tokio;
use hapax_net::http::{HttpClient, HttpSettings};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, StatusCode, Uri};
use serde_json::{Value, json};

use crate::serve::exit::CommandError;
use crate::tls;

/// How many operations one request names.
const ASKED: usize = 100;

/// How long the processor may take for one request.
const DEADLINE: Duration = Duration::from_secs(30);

/// How much of a response is read.
const LARGEST: usize = 1 << 20;

/// The processor of the effect.
#[derive(Debug)]
pub(super) struct EffectProbe {
    uri: Uri,
    client: HttpClient,
}

/// What the processor knows. It knows nothing of an operation that is in neither set.
#[derive(Debug, Default)]
pub(super) struct KnownEffects {
    done: HashSet<OperationId>,
    not_done: HashSet<OperationId>,
}

/// What the processor says about an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Done,
    NotDone,
    Unknown,
}

impl KnownEffects {
    /// The effect of a record, which happened under one of these operations.
    pub(super) fn of(&self, operations: &[OperationId]) -> Effect {
        if operations.iter().any(|id| self.done.contains(id)) {
            Effect::Done
        } else if operations.iter().all(|id| self.not_done.contains(id)) {
            Effect::NotDone
        } else {
            Effect::Unknown
        }
    }
}

impl EffectProbe {
    pub(super) fn new(uri: &Uri, authorities: Option<&Path>) -> Result<Self, CommandError> {
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(CommandError::usage(anyhow!("--probe takes http://HOST/PATH or https://HOST/PATH")));
        }
        let is_secure = uri.scheme_str() == Some("https");
        let tls = is_secure.then(|| tls::client_config(authorities, Some("--probe-ca"))).transpose();
        let client = HttpClient::new(HttpSettings {
            tls: tls.map_err(CommandError::cannot_start)?,
            time_limit: DEADLINE,
            max_body: LARGEST,
            ..HttpSettings::new(Arc::new(Tokio::current()))
        });
        Ok(Self { uri: uri.clone(), client: client.map_err(CommandError::cannot_start)? })
    }

    /// Asks about these operations.
    pub(super) async fn ask(&self, operations: &[OperationId]) -> Result<KnownEffects, CommandError> {
        let mut known = KnownEffects::default();
        for asked in operations.chunks(ASKED) {
            let answer = self.send(asked).await;
            let answer = answer.context("the processor behind --probe cannot be asked");
            let answer = answer.map_err(CommandError::cannot_start)?;
            known.done.extend(answer.done);
            known.not_done.extend(answer.not_done);
        }
        Ok(known)
    }

    async fn send(&self, operations: &[OperationId]) -> Result<KnownEffects, anyhow::Error> {
        let operations: Vec<String> = operations.iter().map(ToString::to_string).collect();
        let request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(json!({ "operations": operations }).to_string().into())?;
        let (head, body) = self.client.send(request).await?.into_parts();
        if head.status != StatusCode::OK {
            bail!("it answers with status {}", head.status.as_u16());
        }
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
    let (mut done, mut not_done) = (set("done")?, set("not_done")?);
    // An answer that contradicts itself says nothing.
    let both: Vec<OperationId> = done.intersection(&not_done).copied().collect();
    for id in both {
        done.remove(&id);
        not_done.remove(&id);
    }
    Ok(KnownEffects { done, not_done })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What is said about a processor that gives this answer, or none.
    async fn failure(answer: Option<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/effects", listener.local_addr().unwrap()).parse().unwrap();
        let processor = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            match answer {
                // The client may stop reading.
                Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
                None => std::future::pending().await,
            }
        });
        let operation = "4bb8a64d-4a7e-8d5e-a4a6-5b3e0b9a8c01".parse().unwrap();
        let probe = EffectProbe::new(&uri, None).unwrap();
        let error = format!("{:?}", probe.ask(&[operation]).await.unwrap_err());
        processor.abort();
        error
    }

    fn answer(status: &str, body: &str) -> Option<String> {
        let length = body.len();
        Some(format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"))
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_used_is_an_error() {
        let nothing = r#"{"done": [], "not_done": []}"#;
        let long = format!("{}{nothing}", " ".repeat(LARGEST));
        for (answer, said) in [
            (answer("500 Internal Server Error", nothing), "it answers with status 500"),
            (answer("204 No Content", ""), "it answers with status 204"),
            (answer("200 OK", &long), "longer than 1 MiB"),
            (answer("200 OK", "<html>"), "its answer is not JSON"),
        ] {
            let error = failure(answer).await;
            assert!(error.contains(said) && error.contains("behind --probe"), "{said}: {error}");
        }
    }

    // The clock goes on whenever everything waits.
    #[tokio::test(start_paused = true)]
    async fn a_processor_that_does_not_answer_is_an_error() {
        let error = failure(None).await;
        assert!(error.contains("it does not answer within 30s"), "{error}");
    }

    #[test]
    fn an_answer_names_what_is_done_and_what_is_not() {
        let id = "4bb8a64d-4a7e-8d5e-a4a6-5b3e0b9a8c01";
        let known = read(&json!({ "done": [id], "not_done": [], "more": 1 })).unwrap();
        assert!(known.done.contains(&id.parse().unwrap()) && known.not_done.is_empty());
        let contradicts = read(&json!({ "done": [id], "not_done": [id] })).unwrap();
        assert!(contradicts.done.is_empty() && contradicts.not_done.is_empty());
        for wrong in [json!({}), json!({ "done": [id] }), json!({ "done": ["7"], "not_done": [] }), json!([])] {
            read(&wrong).unwrap_err();
        }
    }
}
