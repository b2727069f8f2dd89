//! The parts of a request that make the same payload and the same caller, and a change of either.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::config::directory_with;
use crate::harness::{Api, ClientResponse, Gateway, free_address};

/// The file of a gateway, and its address, which is the host that requests name. Both outlive the gateway.
struct Place {
    api: Api,
    public: SocketAddr,
    directory: tempfile::TempDir,
}

impl Place {
    async fn new(file: &str) -> Self {
        Self { api: Api::start().await, public: free_address(), directory: directory_with(file) }
    }

    async fn start(&self, flags: &[&str]) -> Gateway {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let (store, config) = (format!("sqlite://{}", path("records.db")), path("hapax.toml"));
        let flags: Vec<&str> = ["--config", &config].into_iter().chain(flags.iter().copied()).collect();
        Gateway::start_at(self.api.address, &store, &flags, self.public).await
    }
}

/// The outcome of a `POST` with this key and these fields, in a word.
async fn post(gateway: &Gateway, key: &str, target: &str, fields: &[(&str, &str)], body: &'static str) -> String {
    let request = Request::post(format!("http://{}{target}", gateway.public)).header("idempotency-key", key);
    let request = request.header("content-type", "application/json");
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let got = gateway.send(request.body(Full::from(Bytes::from(body))).unwrap()).await.unwrap();
    outcome(&got)
}

fn outcome(got: &ClientResponse) -> String {
    match got.status.as_u16() {
        201 if got.is_replayed() => "replayed".into(),
        201 => "fresh".into(),
        _ => got.problem().to_owned(),
    }
}

const CREDENTIAL: (&str, &str) = ("authorization", "Bearer a");
const ACCOUNT_A: (&str, &str) = ("stripe-account", "acct_A");
const ACCOUNT_B: (&str, &str) = ("stripe-account", "acct_B");

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_rule_accepts_the_records_of_the_rule_before_h10() {
    let place = Place::new("").await;
    let canonical = ["--fingerprint", "json-canonical", "--fingerprint-header", "Stripe-Account"];
    let with_query = [&canonical[..], &["--ignore-query", "trace"]].concat();
    let named = [&with_query[..], &["--older-fingerprint", "json-canonical,header:Stripe-Account"]].concat();
    let both = &[CREDENTIAL, ACCOUNT_A][..];

    let gateway = place.start(&[]).await;
    assert_eq!(post(&gateway, "k0", "/charges", both, "{\"a\":1}").await, "fresh");
    drop(gateway);

    let gateway = place.start(&canonical).await;
    assert_eq!(post(&gateway, "k0", "/charges", both, "{\"a\":1}").await, "replayed", "made before the change");
    assert_eq!(post(&gateway, "k0", "/charges", both, "{ \"a\":1}").await, "key-reused", "by the rule of its record");
    assert_eq!(post(&gateway, "k1", "/charges", both, "{\"a\":1,\"b\":2}").await, "fresh");
    assert_eq!(post(&gateway, "k1", "/charges", both, "{ \"b\": 2, \"a\": 1 }").await, "replayed");
    let other = &[CREDENTIAL, ACCOUNT_B][..];
    assert_eq!(post(&gateway, "k1", "/charges", other, "{\"a\":1,\"b\":2}").await, "key-reused", "another account");
    assert_eq!(post(&gateway, "k1", "/charges", &[CREDENTIAL], "{\"a\":1,\"b\":2}").await, "key-reused");
    drop(gateway);

    let gateway = place.start(&named).await;
    assert_eq!(post(&gateway, "k1", "/charges", both, "{\"b\":2,\"a\":1}").await, "replayed", "the rule is named");
    assert_eq!(post(&gateway, "k2", "/charges?trace=1&x=1", both, "{}").await, "fresh");
    assert_eq!(post(&gateway, "k2", "/charges?x=1&trace=2", both, "{}").await, "replayed");
    assert_eq!(post(&gateway, "k2", "/charges?x=2", both, "{}").await, "key-reused");
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let rule = "json-canonical,header:stripe-account,without-query:trace";
    assert!(page.body.contains(&format!("\"fingerprint\": \"{rule}\"")), "{}", page.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_fields_identify_a_tenant_and_one_alone_keeps_its_hash_h6() {
    let file = "[gateway]\ntenant = ['authorization', 'optional-header:Stripe-Account']\n\
        [[route]]\npath = '/one'\ntenant = ['authorization']\n\
        [[route]]\npath = '/strict'\nfingerprint-header = ['Stripe-Account']\n";
    let place = Place::new(file).await;
    let gateway = place.start(&[]).await;
    for (fields, first) in [
        (&[CREDENTIAL, ACCOUNT_A][..], "fresh"),
        (&[CREDENTIAL, ACCOUNT_B][..], "fresh"),
        (&[CREDENTIAL][..], "fresh"),
        (&[("authorization", "Bearer b"), ACCOUNT_A][..], "fresh"),
        (&[ACCOUNT_A][..], "caller-unknown"),
        (&[CREDENTIAL, ACCOUNT_A, ACCOUNT_B][..], "caller-unknown"),
    ] {
        let second = if first == "fresh" { "replayed" } else { first };
        assert_eq!(post(&gateway, "k", "/charges", fields, "{}").await, first, "{fields:?}");
        assert_eq!(post(&gateway, "k", "/charges", fields, "{}").await, second, "{fields:?}");
    }
    assert_eq!(post(&gateway, "one", "/one", &[CREDENTIAL], "{}").await, "fresh");
    assert_eq!(post(&gateway, "s", "/strict", &[CREDENTIAL, ACCOUNT_A], "{}").await, "fresh");
    assert_eq!(post(&gateway, "s", "/strict", &[CREDENTIAL, ACCOUNT_B], "{}").await, "fresh", "another tenant");
    drop(gateway);

    let gateway = place.start(&["--tenant", "authorization"]).await;
    assert_eq!(post(&gateway, "one", "/one", &[CREDENTIAL], "{}").await, "replayed", "a list of one is that one");
}
