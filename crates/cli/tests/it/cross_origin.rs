//! Pages of other origins: which responses they can read, and who answers their preflights.

use http::{HeaderMap, Request};
use http_body_util::Full;

use crate::harness::{Api, ClientResponse, Gateway};

const SHOP: &str = "https://shop.example";
const ADMIN: &str = "https://admin.shop.example";

async fn gateway(api: &Api, origins: &[&str]) -> Gateway {
    let flags: Vec<&str> = origins.iter().flat_map(|origin| ["--cors-origin", origin]).collect();
    Gateway::start(api.address, "memory:", &flags).await
}

async fn post(gateway: &Gateway, path: &str, origin: &str, body: &'static str) -> ClientResponse {
    let request = Request::post(format!("http://{}{path}", gateway.public)).header("origin", origin);
    let request = request.header("authorization", "Bearer of-a-page").header("idempotency-key", "of-a-page");
    gateway.send(request.body(Full::from(body)).unwrap()).await.unwrap()
}

async fn preflight(gateway: &Gateway, origin: &str) -> ClientResponse {
    let request = Request::options(format!("http://{}/charges", gateway.public)).header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    let request = request.header("access-control-request-headers", "authorization,idempotency-key");
    gateway.send(request.body(Full::default()).unwrap()).await.unwrap()
}

/// The values of this field, which must be at most one.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values: Vec<&str> = headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
    assert!(values.len() <= 1, "{name}: {values:?}");
    values.first().copied()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_named_origins_read_answers_replays_and_problems_h59() {
    let api = Api::start().await;
    let gateway = gateway(&api, &[SHOP, ADMIN]).await;
    let fresh = post(&gateway, "/open", SHOP, "{}").await;
    assert!(!fresh.is_replayed());
    assert_eq!(one(&fresh.headers, "access-control-allow-origin"), Some(SHOP), "a page reads the first answer too");
    let replay = post(&gateway, "/open", ADMIN, "{}").await;
    let problem = post(&gateway, "/open", SHOP, r#"{"amount":2}"#).await;
    assert!(replay.is_replayed());
    assert_eq!((problem.status.as_u16(), problem.problem()), (422, "key-reused"));
    for (response, origin) in [(replay, ADMIN), (problem, SHOP)] {
        assert_eq!(one(&response.headers, "access-control-allow-origin"), Some(origin));
        assert_eq!(one(&response.headers, "access-control-allow-credentials"), Some("true"));
        let exposed = one(&response.headers, "access-control-expose-headers").unwrap();
        assert!(exposed.contains("idempotent-replayed") && exposed.contains("retry-after"), "{exposed}");
    }
    let foreign = post(&gateway, "/open", "https://evil.example", "{}").await;
    assert!(foreign.is_replayed() && one(&foreign.headers, "access-control-allow-origin").is_none());
    assert_eq!(one(&foreign.headers, "vary"), Some("origin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_every_origin_read_without_credentials_h59() {
    let api = Api::start().await;
    let gateway = gateway(&api, &["*"]).await;
    for is_replay in [false, true] {
        let response = post(&gateway, "/charges", SHOP, "{}").await;
        assert_eq!(response.is_replayed(), is_replay);
        assert_eq!(one(&response.headers, "access-control-allow-origin"), Some("*"));
        assert!(one(&response.headers, "access-control-allow-credentials").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_answers_preflights_of_named_origins_h59() {
    let api = Api::start().await;
    let gateway = gateway(&api, &[SHOP]).await;
    let allowed = preflight(&gateway, SHOP).await;
    assert_eq!(allowed.status, 204);
    assert_eq!(one(&allowed.headers, "access-control-allow-origin"), Some(SHOP));
    assert_eq!(one(&allowed.headers, "access-control-allow-methods"), Some("POST"));
    assert_eq!(one(&allowed.headers, "access-control-allow-headers"), Some("authorization,idempotency-key"));
    let refused = preflight(&gateway, "https://evil.example").await;
    assert!(refused.status == 204 && one(&refused.headers, "access-control-allow-origin").is_none());
    assert_eq!(api.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_named_origins_the_api_decides_and_the_log_says_what_is_missing_h59() {
    let api = Api::start().await;
    let gateway = gateway(&api, &[]).await;
    assert_eq!(preflight(&gateway, SHOP).await.status, 201);
    assert_eq!(api.count(), 1, "the preflight went to the API");
    for (body, has_field) in [("{}", true), ("{}", false), (r#"{"amount":2}"#, false)] {
        let response = post(&gateway, "/open", SHOP, body).await;
        assert_eq!(one(&response.headers, "access-control-allow-origin").is_some(), has_field, "{body}");
    }
    post(&gateway, "/open?again", SHOP, "{}").await;
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert_eq!(logs.matches("--cors-origin").count(), 1, "{logs}");
}
