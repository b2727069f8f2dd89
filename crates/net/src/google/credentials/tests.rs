use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hapax_core::runtime::Tokio;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::*;
use crate::google::test_server::{TokenServer, token, write};

/// A key that signs nothing else.
const KEY: &str = include_str!("test_key.pem");

/// The token for the credentials in this file.
async fn found(content: &Value) -> Result<AccessToken> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials.json");
    write(&file, content);
    let credentials = GoogleCredentials::from_file(file, Arc::new(Tokio::current())).unwrap();
    credentials.current().await.map(Option::unwrap)
}

fn fields(body: &str) -> std::collections::BTreeMap<String, String> {
    form_urlencoded::parse(body.as_bytes()).into_owned().collect()
}

fn service_key(server: &TokenServer) -> Value {
    json!({
        "type": "service_account", "client_email": "worker@shop.example", "private_key_id": "k1", "private_key": KEY,
        "token_uri": format!("http://{}/token", server.address), "project_id": "shop",
    })
}

#[tokio::test]
async fn a_service_account_signs_for_its_token() {
    let server = TokenServer::start(&[token("first")]).await;
    let begun = Tokio::current().wall_now().0 / 1_000_000;
    let token = found(&service_key(&server)).await.unwrap();
    assert_eq!(&*token.text, "first");
    let end = token.end.duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((begun + 3599..begun + 3700).contains(&end), "{end}");
    let asked = fields(&server.asked()[0].1);
    assert_eq!(asked["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
    let (signed, signature) = asked["assertion"].rsplit_once('.').unwrap();
    let key = PrivatePkcs8KeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public());
    public.verify(signed.as_bytes(), &BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let part = |place| -> Value {
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(signed.split('.').nth(place).unwrap()).unwrap()).unwrap()
    };
    assert_eq!(part(0), json!({ "alg": "RS256", "typ": "JWT", "kid": "k1" }));
    let claims = part(1);
    assert_eq!(
        (&claims["iss"], &claims["scope"]),
        (&json!("worker@shop.example"), &json!("https://www.googleapis.com/auth/cloud-platform"))
    );
    assert_eq!(claims["aud"], format!("http://{}/token", server.address));
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
}

#[tokio::test]
async fn a_user_and_an_impersonated_account_have_a_token() {
    let expires = json!({ "accessToken": "second", "expireTime": "2100-01-01T00:00:00Z" });
    let server = TokenServer::start(&[token("first"), token("first"), (200, expires)]).await;
    let user = json!({
        "type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r",
        "token_uri": format!("http://{}/token", server.address),
    });
    assert_eq!(&*found(&user).await.unwrap().text, "first");
    let expected =
        [("client_id", "i"), ("client_secret", "s"), ("grant_type", "refresh_token"), ("refresh_token", "r")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(fields(&server.asked()[0].1), std::collections::BTreeMap::from(expected));
    let impersonated = json!({
        "type": "impersonated_service_account", "source_credentials": user,
        "service_account_impersonation_url": format!("http://{}/v1/x:generateAccessToken", server.address),
    });
    let token = found(&impersonated).await.unwrap();
    assert_eq!((&*token.text, token.end.duration_since(UNIX_EPOCH).unwrap().as_secs()), ("second", 4_102_444_800));
    let (head, body) = server.asked().pop().unwrap();
    assert!(head.starts_with("POST /v1/x:generateAccessToken") && head.contains("Bearer first"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["lifetime"], "3600s");
}

#[tokio::test]
async fn an_identity_of_another_provider_is_exchanged() {
    let server = TokenServer::start(&[(200, json!({ "id_token": "theirs" })), token("ours")]).await;
    let account = json!({
        "type": "external_account", "audience": "//iam.example/pool", "subject_token_type": "jwt",
        "token_url": format!("http://{}/v1/token", server.address),
        "credential_source": {
            "url": format!("http://{}/theirs", server.address), "headers": { "x-asks": "hapax" },
            "format": { "type": "json", "subject_token_field_name": "id_token" },
        },
    });
    assert_eq!(&*found(&account).await.unwrap().text, "ours");
    let asked = server.asked();
    assert!(asked[0].0.starts_with("GET /theirs") && asked[0].0.contains("x-asks: hapax"), "{}", asked[0].0);
    let exchanged = fields(&asked[1].1);
    assert_eq!((&*exchanged["subject_token"], &*exchanged["audience"]), ("theirs", "//iam.example/pool"));
}

#[tokio::test]
async fn the_metadata_server_gives_the_token_of_the_machine() {
    let server = TokenServer::start(&[token("here"), (404, json!({})), (503, json!({}))]).await;
    let find = async || {
        let host = Some(server.address.clone());
        let credentials = GoogleCredentials::from_places(None, host, Arc::new(Tokio::current())).unwrap();
        credentials.current().await.map(Option::unwrap)
    };
    assert_eq!(&*find().await.unwrap().text, "here");
    let (head, _) = server.asked().remove(0);
    assert!(head.starts_with("GET /computeMetadata/v1/instance/service-accounts/default/token?scopes="), "{head}");
    assert!(head.to_ascii_lowercase().contains("metadata-flavor: google"), "{head}");
    assert_eq!(find().await.err().unwrap().kind(), ErrorKind::Unusable, "no service account");
    assert_eq!(find().await.err().unwrap().kind(), ErrorKind::NotApplied, "a problem of the server");
}

#[tokio::test]
async fn credentials_that_are_refused_are_unusable_and_nothing_shows_a_secret() {
    let refusal = json!({ "error": "invalid_grant", "error_description": "no such account" });
    let server = TokenServer::start(&[(400, refusal), (500, json!({})), token("ours")]).await;
    let error = found(&service_key(&server)).await.err().unwrap();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("invalid_grant no such account"), "{cause}");
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert_eq!(found(&service_key(&server)).await.err().unwrap().kind(), ErrorKind::NotApplied);
    let credentials = GoogleCredentials::from_file("/none".into(), Arc::new(Tokio::current())).unwrap();
    assert_eq!(credentials.current().await.err().unwrap().kind(), ErrorKind::Unusable);
    // A secret is not sent in plain text to another machine.
    let mut key = service_key(&server);
    key["token_uri"] = json!("http://oauth2.example/token");
    let error = found(&key).await.err().unwrap();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("not https"), "{error:?}");
    key["private_key"] = json!("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    let error = format!("{:?}", found(&key).await.err().unwrap());
    assert!(error.contains("no RSA key") && !error.contains("AAAA"), "{error}");
    assert!(GoogleCredentials::of_a_stand_in().current().await.unwrap().is_none());
}
