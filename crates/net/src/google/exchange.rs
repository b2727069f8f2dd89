//! Asks for access tokens over HTTP.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode, Uri};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::credentials::AccessToken;
use super::places::{AuthorizedUser, CredentialFile, ExternalAccount, Impersonated, ServiceKey};
use crate::files;
use crate::http::HttpClient;

/// The rights that a token asks for. IAM grants less.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// How long a token of a key lives.
const LIFE: Duration = Duration::from_secs(3600);

/// No token lives longer.
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How long the metadata server may take. It is on the machine itself, if there is one.
const METADATA_WITHIN: Duration = Duration::from_secs(5);

/// The most that is shown of what a service says.
const LONGEST_MESSAGE: usize = 200;

/// Exchanges credentials for access tokens.
pub(super) struct TokenExchange {
    http: HttpClient,
    runtime: Arc<dyn Runtime>,
}

impl TokenExchange {
    pub(super) fn new(http: HttpClient, runtime: Arc<dyn Runtime>) -> Self {
        Self { http, runtime }
    }

    /// A token for these credentials.
    pub(super) fn token<'a>(&'a self, file: &'a CredentialFile) -> BoxFuture<'a, Result<AccessToken>> {
        match file {
            CredentialFile::ServiceAccount(key) => Box::pin(self.of_key(key)),
            CredentialFile::AuthorizedUser(user) => Box::pin(self.of_user(user)),
            CredentialFile::ExternalAccount(account) => Box::pin(self.of_external(account)),
            CredentialFile::ImpersonatedServiceAccount(impersonated) => Box::pin(async move {
                let Impersonated { service_account_impersonation_url: url, source_credentials } = impersonated;
                let token = self.token(source_credentials).await?;
                self.impersonate(url, &token).await
            }),
        }
    }

    /// The token of the service account of this machine.
    pub(super) async fn metadata_token(&self, host: &str) -> Result<AccessToken> {
        let uri = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token?scopes={SCOPE}");
        let request = Request::get(uri).header("metadata-flavor", "Google").body(Bytes::new()).map_err(wrong_url)?;
        let answer = self.http.send_within(request, METADATA_WITHIN).await.map_err(|failure| {
            let what = "the metadata server cannot be asked, and no file has credentials: set \
                        GOOGLE_APPLICATION_CREDENTIALS to the file of a service account";
            not_applied(what).caused_by(failure)
        })?;
        if answer.headers().get("metadata-flavor").is_none_or(|flavor| flavor != "Google") {
            return Err(unusable(format!("{host} is no metadata server of Google: its answer does not say so")));
        }
        if answer.status() == StatusCode::NOT_FOUND {
            return Err(unusable(
                "this machine has no service account: give it one, or name a file in \
                 GOOGLE_APPLICATION_CREDENTIALS",
            ));
        }
        self.read_token(&json_of(answer)?)
    }

    async fn of_key(&self, key: &ServiceKey) -> Result<AccessToken> {
        let now = self.runtime.wall_now().0 / 1_000_000;
        let header = json!({ "alg": "RS256", "typ": "JWT", "kid": key.private_key_id });
        let claims = json!({
            "iss": key.client_email, "scope": SCOPE, "aud": key.token_uri, "iat": now, "exp": now + LIFE.as_secs(),
        });
        let encoded = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encoded(&header), encoded(&claims));
        let assertion =
            format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(sign(&key.private_key, signed.as_bytes())?));
        let fields = [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", &assertion)];
        self.post_form(&key.token_uri, &fields).await
    }

    async fn of_user(&self, user: &AuthorizedUser) -> Result<AccessToken> {
        let fields = [
            ("grant_type", "refresh_token"),
            ("client_id", &*user.client_id),
            ("client_secret", &*user.client_secret),
            ("refresh_token", &*user.refresh_token),
        ];
        self.post_form(&user.token_uri, &fields).await
    }

    async fn of_external(&self, account: &ExternalAccount) -> Result<AccessToken> {
        let subject = self.subject_token(account).await?;
        let fields = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", &*account.audience),
            ("scope", SCOPE),
            ("subject_token_type", &*account.subject_token_type),
            ("subject_token", &*subject),
        ];
        let token = self.post_form(&account.token_url, &fields).await?;
        match &account.service_account_impersonation_url {
            Some(url) => self.impersonate(url, &token).await,
            None => Ok(token),
        }
    }

    /// The token of the other provider.
    async fn subject_token(&self, account: &ExternalAccount) -> Result<String> {
        let source = &account.credential_source;
        match (&source.file, &source.url) {
            (Some(file), _) => source.read(&files::read_text(file)?),
            (None, Some(url)) => {
                let mut request = Request::get(checked(url)?);
                for (name, value) in &source.headers {
                    request = request.header(name, value);
                }
                let answer = self.send(request.body(Bytes::new()).map_err(wrong_url)?).await?;
                source.read(&String::from_utf8_lossy(answer.body()))
            }
            (None, None) => Err(unusable(
                "the token of the other provider is in no file and at no URL; no other source \
                 of an external account is known",
            )),
        }
    }

    /// A token of a service account, for somebody who may act as it.
    async fn impersonate(&self, url: &str, token: &AccessToken) -> Result<AccessToken> {
        let body = json!({ "scope": [SCOPE], "lifetime": format!("{}s", LIFE.as_secs()) });
        let request = Request::post(checked(url)?).header(CONTENT_TYPE, "application/json");
        let request = request.header(AUTHORIZATION, token.header()?);
        let answer = self.send(request.body(body.to_string().into()).map_err(wrong_url)?).await?;
        let answer = json_of(answer)?;
        let text = answer["accessToken"].as_str().ok_or_else(no_token)?;
        let end = answer["expireTime"].as_str().and_then(|time| humantime::parse_rfc3339(time).ok());
        Ok(AccessToken { text: text.into(), end: end.ok_or_else(no_token)? })
    }

    async fn post_form(&self, url: &str, fields: &[(&str, &str)]) -> Result<AccessToken> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = Request::builder().method(Method::POST).uri(checked(url)?).header(ACCEPT, "application/json");
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body.into());
        let answer = self.send(request.map_err(wrong_url)?).await?;
        self.read_token(&json_of(answer)?)
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let sent = self.http.send(request).await;
        sent.map_err(|failure| not_applied(format!("{host} cannot be asked for a token")).caused_by(failure))
    }

    fn read_token(&self, answer: &Value) -> Result<AccessToken> {
        let text = answer["access_token"].as_str().filter(|text| !text.is_empty()).ok_or_else(no_token)?;
        let life = answer["expires_in"].as_u64().unwrap_or(LIFE.as_secs()).min(LONGEST_LIFE.as_secs());
        let now = UNIX_EPOCH + Duration::from_micros(self.runtime.wall_now().0);
        Ok(AccessToken { text: text.into(), end: now + Duration::from_secs(life) })
    }
}

fn sign(pem: &str, message: &[u8]) -> Result<Vec<u8>> {
    let wrong = || unusable("the private key of the service account is no RSA key in PEM");
    let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| wrong())?;
    let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map_err(|_| wrong())?;
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).map_err(|_| wrong())?;
    Ok(signature)
}

/// A URL to which secrets are sent: with TLS, or on this machine.
fn checked(url: &str) -> Result<Uri> {
    let uri: Uri = url.parse().map_err(wrong_url)?;
    let is_here = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]" | "169.254.169.254"));
    if uri.scheme_str() == Some("https") || is_here {
        return Ok(uri);
    }
    Err(unusable(format!("the file names {url}, which is not https: a secret would be sent in plain text")))
}

/// The JSON of an answer.
///
/// # Errors
/// `Unusable` if the credentials are refused, `NotApplied` if the service has a problem.
fn json_of(answer: Response<Bytes>) -> Result<Value> {
    let status = answer.status();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    let word = |value: &Value| value.as_str().map(|text| text.chars().take(LONGEST_MESSAGE).collect::<String>());
    let error = word(&body["error"]).or_else(|| word(&body["error"]["status"])).unwrap_or_default();
    let description = word(&body["error_description"]).or_else(|| word(&body["error"]["message"])).unwrap_or_default();
    let what = format!("no token is given for the credentials: {status} {error} {description}");
    let is_refusal =
        status.is_client_error() && ![StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
    Err(if is_refusal { unusable(what.trim_end().to_owned()) } else { not_applied(what.trim_end().to_owned()) })
}

fn no_token() -> Error {
    not_applied("the answer has no access token")
}

fn wrong_url(_: impl std::error::Error) -> Error {
    unusable("the credentials name something that is no URL")
}

pub(super) fn unusable(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

fn not_applied(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}
