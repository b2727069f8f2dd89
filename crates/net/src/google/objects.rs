//! Requests to a bucket of Google Cloud Storage, which speaks the protocol of S3 and takes access tokens.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, ErrorKind};
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};

use super::GoogleCredentials;
use super::crc32c::crc32c;
use super::credentials::AccessToken;
use crate::http::{AnswerLimits, HttpClient, RequestFailure};
use crate::objects::BucketFailure;
use crate::xml;

/// The most that is shown of what the service says.
const LONGEST_MESSAGE: usize = 300;

/// Sends requests, each once, and once more with another token if the service has refused the first one.
#[derive(Clone, Debug)]
pub(crate) struct GoogleObjects {
    credentials: GoogleCredentials,
    http: HttpClient,
    runtime: Arc<dyn Runtime>,
}

/// The code with which the service refuses to write an object whose name is taken.
pub(crate) const NAME_IS_TAKEN: &str = "PreconditionFailed";

/// The fields of a write: only if there is no object of this name, and only if the bytes arrive as they were sent.
pub(crate) fn fields_of_a_write(body: &[u8]) -> [(&'static str, String); 2] {
    let checksum = BASE64_STANDARD.encode(crc32c(body).to_be_bytes());
    [("x-goog-if-generation-match", "0".to_owned()), ("x-goog-hash", format!("crc32c={checksum}"))]
}

/// An answer, and the token of its request.
type AnsweredRequest = (Response<Bytes>, Option<AccessToken>);

impl GoogleObjects {
    pub(crate) fn new(credentials: GoogleCredentials, http: HttpClient, runtime: Arc<dyn Runtime>) -> Self {
        Self { credentials, http, runtime }
    }

    /// Sends a request. If the service does not take the credentials, it tries others once.
    ///
    /// # Errors
    /// Why the service has not carried it out, or may not have.
    pub(crate) async fn exchange(
        &self,
        request: Request<Bytes>,
        limits: AnswerLimits,
    ) -> Result<Response<Bytes>, BucketFailure> {
        let (answer, token) = self.attempt(&request, limits).await?;
        let is_refused = answer.status() == StatusCode::UNAUTHORIZED;
        if is_refused && token.is_some_and(|token| self.credentials.refused(&token)) {
            return result_of(self.attempt(&request, limits).await?.0);
        }
        result_of(answer)
    }

    async fn attempt(&self, request: &Request<Bytes>, limits: AnswerLimits) -> Result<AnsweredRequest, BucketFailure> {
        let token = timeout(&*self.runtime, limits.head, self.credentials.current()).await;
        let token = token.unwrap_or_else(|| Err(late(limits.head))).map_err(BucketFailure::other)?;
        let mut request = request.clone();
        if let Some(token) = &token {
            let value = token.header().map_err(BucketFailure::other)?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let (answer, _) = self.http.send_timed(request, limits).await.map_err(unanswered)?;
        Ok((answer, token))
    }
}

fn result_of(answer: Response<Bytes>) -> Result<Response<Bytes>, BucketFailure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let text = String::from_utf8_lossy(answer.body());
    let code = match status {
        StatusCode::PRECONDITION_FAILED => NAME_IS_TAKEN.to_owned(),
        _ => xml::text(&text, "Code").unwrap_or_else(|| format!("HTTP {}", status.as_u16())),
    };
    // The details may have the name of an object, which has a whole record key.
    let message: String = xml::text(&text, "Message").unwrap_or_default().chars().take(LONGEST_MESSAGE).collect();
    let what = format!("Google Cloud Storage answers {status}: {code} {message}").trim_end().to_owned();
    Err(if status.is_server_error() { BucketFailure::other(what) } else { BucketFailure::refused(code, what) })
}

fn unanswered(failure: RequestFailure) -> BucketFailure {
    BucketFailure::other(Error::new(ErrorKind::NotApplied, "Google Cloud Storage does not answer").caused_by(failure))
}

fn late(limit: Duration) -> Error {
    Error::new(ErrorKind::NotApplied, format!("credentials for Google Cloud are not found within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use hapax_core::runtime::Tokio;
    use serde_json::{Value, json};

    use super::*;
    use crate::google::test_server::{TokenServer, token, write};
    use crate::http::HttpSettings;
    use crate::objects::BucketClient;

    const LIMITS: AnswerLimits = AnswerLimits { head: Duration::from_secs(20), body: Duration::from_secs(20) };

    /// A client of a bucket `shop` on this server.
    fn bucket(server: &TokenServer, credentials: GoogleCredentials) -> BucketClient {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime))).unwrap();
        BucketClient::of_google(&format!("http://{}/shop/", server.address), credentials, LIMITS, http, runtime)
    }

    /// Credentials, and the server that they ask.
    struct AskedTokens {
        tokens: TokenServer,
        credentials: GoogleCredentials,
        /// The file is read again at each search.
        _folder: tempfile::TempDir,
    }

    /// Credentials with these tokens, one after the other.
    async fn credentials(tokens: &[(u16, Value)]) -> AskedTokens {
        let tokens = TokenServer::start(tokens).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("user.json");
        let uri = format!("http://{}/token", tokens.address);
        let user = json!({
            "type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r", "token_uri": uri,
        });
        write(&file, &user);
        let credentials = GoogleCredentials::from_file(file, Arc::new(Tokio::current())).unwrap();
        AskedTokens { tokens, credentials, _folder: folder }
    }

    #[tokio::test]
    async fn a_refused_token_is_replaced_in_the_middle_and_the_write_is_sent_once_more() {
        let asked_tokens = credentials(&[token("first"), token("second")]).await;
        let ok = || (200, json!({}));
        let objects = TokenServer::start(&[ok(), (401, json!({})), ok()]).await;
        let bucket = bucket(&objects, asked_tokens.credentials);
        bucket.put("a", Bytes::from_static(b"one")).await.unwrap();
        bucket.put("b", Bytes::from_static(b"two")).await.unwrap();
        bucket.put("c", Bytes::from_static(b"three")).await.unwrap();
        let asked = objects.asked();
        let expected =
            [("/a", "first", "one"), ("/b", "first", "two"), ("/b", "second", "two"), ("/c", "second", "three")];
        assert_eq!((asked.len(), asked_tokens.tokens.asked().len()), (expected.len(), 2));
        for ((head, body), (path, token, content)) in asked.iter().zip(expected) {
            assert!(head.starts_with(&format!("PUT /shop{path} ")), "{head}");
            assert!(head.contains(&format!("authorization: Bearer {token}\r\n")), "{head}");
            assert_eq!(body, content);
        }
    }

    #[tokio::test]
    async fn a_token_that_is_refused_again_is_not_replaced_again() {
        let asked_tokens = credentials(&[token("first"), token("second")]).await;
        let objects = TokenServer::start(&[(401, json!({}))]).await;
        let failure =
            bucket(&objects, asked_tokens.credentials).put("a", Bytes::from_static(b"one")).await.unwrap_err();
        assert_eq!(failure.code(), "HTTP 401");
        assert!(!failure.to_string().contains("first"), "{failure}");
        assert_eq!((objects.asked().len(), asked_tokens.tokens.asked().len()), (2, 2));
    }

    #[tokio::test]
    async fn an_answer_that_tokens_are_not_given_is_no_answer_of_the_bucket() {
        let asked_tokens = credentials(&[(400, json!({ "error": "invalid_grant" }))]).await;
        let objects = TokenServer::start(&[(200, json!({}))]).await;
        let failure = bucket(&objects, asked_tokens.credentials).get("a").await.unwrap_err();
        assert_eq!((failure.code(), objects.asked().len()), ("", 0));
    }

    #[tokio::test]
    async fn a_write_has_its_conditions() {
        let objects = TokenServer::start(&[(200, json!({}))]).await;
        let bucket = bucket(&objects, GoogleCredentials::of_a_stand_in());
        bucket.put("a", Bytes::from_static(b"123456789")).await.unwrap();
        let head = objects.asked()[0].0.to_ascii_lowercase();
        for field in ["x-goog-if-generation-match: 0\r\n", "x-goog-hash: crc32c=4waSgw==\r\n"] {
            assert!(head.contains(&field.to_ascii_lowercase()), "{head}");
        }
        assert!(!head.contains("authorization"), "{head}");
    }

    #[tokio::test]
    async fn a_write_whose_name_is_taken_has_succeeded_only_if_the_same_bytes_are_there() {
        let there = json!("there");
        for (content, is_written) in [(there.to_string(), true), ("other".to_owned(), false)] {
            let objects = TokenServer::start(&[(412, json!({})), (200, there.clone())]).await;
            let bucket = bucket(&objects, GoogleCredentials::of_a_stand_in());
            let written = bucket.put("a", content.into()).await;
            assert_eq!(written.is_ok(), is_written, "{written:?}");
            assert!(objects.asked()[1].0.starts_with("GET /shop/a "));
        }
        let objects = TokenServer::start(&[(412, json!({})), (503, json!({}))]).await;
        let bucket = bucket(&objects, GoogleCredentials::of_a_stand_in());
        bucket.put("a", there.to_string().into()).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_refusal_has_its_code_and_a_failure_of_the_service_none() {
        for (status, code) in [(404, "HTTP 404"), (403, "HTTP 403"), (429, "HTTP 429"), (503, "")] {
            let server = TokenServer::start(&[(status, json!({}))]).await;
            let bucket = bucket(&server, GoogleCredentials::of_a_stand_in());
            assert_eq!(bucket.get("a").await.unwrap_err().code(), code);
            assert_eq!(server.asked().len(), 1, "{status} is not sent again");
        }
    }
}
