//! Profiles, and problems in the shape of an API's errors.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::config::{check, directory_with};
use crate::harness::{Api, ClientResponse, Gateway};

async fn send(gateway: &Gateway, method: &str, path: &str, key: Option<&str>) -> ClientResponse {
    let request = Request::builder().method(method).uri(format!("http://{}{path}", gateway.public));
    let request = request.header("authorization", "Bearer sk_test_1");
    let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
    gateway.send(request.body(Full::from(Bytes::from("amount=5"))).unwrap()).await.unwrap()
}

#[test]
fn a_profile_is_a_set_of_settings_that_check_lists_and_each_given_value_wins_h65() {
    let directory =
        directory_with("[gateway]\nprofile = 'stripe'\nupstream = 'http://127.0.0.1:7'\n[policy]\nfinal = [502]\n");
    let (code, shown, errors) = check(directory.path(), &[], &["--config", "hapax.toml", "--key", "required"]);
    assert_eq!(code, 0, "{errors}");
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("each has a line");
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("protect-method"), ["protect-method", "POST,DELETE", "profile stripe"]);
    assert_eq!(row("not-applied"), ["not-applied", "409", "profile stripe"]);
    assert_eq!(row("tenant")[1], "authorization,optional-header:Stripe-Account");
    assert_eq!(row("key"), ["key", "required", "--key"]);
    assert_eq!(row("final")[1], "502");
    assert!(shown.contains("\nPOST and DELETE: protected, key required."), "{shown}");

    let refused = |flags: &[&str]| check(directory.path(), &[], flags);
    let (code, _, errors) = refused(&["--profile", "paypal"]);
    assert!(code == 2 && errors.contains("write one of: ietf, stripe"), "{errors}");
    let (code, _, errors) = refused(&["--profile", "stripe", "--final", "409"]);
    assert!(code == 2 && errors.contains("409 is in not-applied and in final"), "{errors}");
    let (code, _, errors) = refused(&["--problem-format", "json:{\"a\":\"{b}\"}"]);
    assert!(code == 2 && errors.contains("is no placeholder"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profile_of_stripe_is_the_contract_of_its_libraries_h65() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--profile", "stripe"]).await;
    for (method, path, key, status, is_replay) in [
        ("POST", "/v1/charges", None, 201, false),
        ("POST", "/v1/charges", Some("k1"), 201, true),
        ("DELETE", "/v1/customers/7", Some("k2"), 201, true),
        ("PATCH", "/v1/charges", Some("k3"), 201, false),
        ("POST", "/status/500", Some("k4"), 500, true),
        ("POST", "/status/409", Some("k5"), 409, false),
    ] {
        let first = send(&gateway, method, path, key).await;
        assert_eq!((first.status.as_u16(), first.is_replayed()), (status, false), "{method} {path}");
        let second = send(&gateway, method, path, key).await;
        assert_eq!((second.status.as_u16(), second.is_replayed()), (status, is_replay), "{method} {path}");
    }
    let reused = send(&gateway, "POST", "/v1/refunds", Some("k1")).await;
    assert_eq!((reused.status.as_u16(), &reused.headers["content-type"]), (422, &"application/json".parse().unwrap()));
    let document: Value = serde_json::from_str(&reused.body).unwrap();
    assert_eq!(document["error"]["type"], "idempotency_error");
    assert_eq!(document["error"]["code"], "key-reused");
    assert!(reused.headers.contains_key("link"), "the page explains it");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_problem_of_the_gateway_has_the_shape_of_the_template_h34() {
    let nowhere = crate::harness::free_address();
    let template = r#"json:{"errors":[{"status":"{status}","code":"{name}","operation":"{operation}"}]}"#;
    let gateway = Gateway::start(nowhere, "memory:", &["--problem-format", template, "--key", "optional"]).await;
    let unprotected = send(&gateway, "POST", "/charges", None).await;
    let expected = json!({"errors": [{"status": 502, "code": "upstream-unreachable", "operation": null}]});
    assert_eq!(serde_json::from_str::<Value>(&unprotected.body).unwrap(), expected);
    let protected: Value = serde_json::from_str(&send(&gateway, "POST", "/charges", Some("k")).await.body).unwrap();
    assert_eq!(protected["errors"][0]["code"], "upstream-unreachable");
    assert!(protected["errors"][0]["operation"].is_string(), "{protected}");
}
