//! Routes of a running gateway: each has its own contract, and no spelling of a path bypasses it.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;

use crate::config::directory_with;
use crate::harness::{Api, ClientResponse, Gateway, until};

/// Starts a gateway with these routes.
async fn start_with_routes(api: &Api, file: &str) -> (Gateway, TempDir) {
    let directory = directory_with(file);
    let config = directory.path().join("hapax.toml").display().to_string();
    (Gateway::start(api.address, "memory:", &["--config", &config]).await, directory)
}

async fn send(
    gateway: &Gateway,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &'static str,
) -> ClientResponse {
    let request = Request::builder().method(method).uri(format!("http://{}{path}", gateway.public));
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.header("authorization", "Bearer a").body(Full::from(Bytes::from(body))).unwrap();
    gateway.send(request).await.unwrap()
}

const KEY: &[(&str, &str)] = &[("idempotency-key", "k")];

#[tokio::test(flavor = "multi_thread")]
async fn each_route_has_its_own_retention_and_outcomes_h40() {
    let api = Api::start().await;
    let (gateway, _directory) = start_with_routes(
        &api,
        "[policy]\nlease = '1s'\n\
         [[route]]\npath = '/short'\nretention = '1s'\n\
         [[route]]\npath = '/status/503'\nnot-applied = [503]\n\
         [[route]]\npath = '/status/500'\nfinal = [500]\n",
    )
    .await;
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    let retention = |policy: &serde_json::Value| policy["retention"]["seconds"].as_u64();
    assert_eq!((retention(&page["routes"][0]), retention(&page)), (Some(1), Some(24 * 3600)));
    let others = gateway.post("/others", "k", "{}").await.unwrap();
    gateway.post("/short", "s", "{}").await.unwrap();
    until("the answer has expired", async || !gateway.post("/short", "s", "{}").await.unwrap().is_replayed()).await;
    let again = gateway.post("/others", "k", "{}").await.unwrap();
    assert!(again.is_replayed() && again.body == others.body, "other routes keep their retention");

    for (path, second) in [("/status/503", (503, false)), ("/status/500", (500, true)), ("/status/502", (409, false))] {
        gateway.post(path, path.strip_prefix("/status/").unwrap(), "{}").await.unwrap();
        let got = gateway.post(path, path.strip_prefix("/status/").unwrap(), "{}").await.unwrap();
        assert_eq!((got.status.as_u16(), got.is_replayed()), second, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_4xx_has_a_retention_of_its_own_h48() {
    let api = Api::start().await;
    let file = "[policy]\nlease = '1s'\n[[route]]\npath = '/status/{code}'\nfinal-retention = '1s'\nfinal = [500]\n";
    let (gateway, _directory) = start_with_routes(&api, file).await;
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    let seconds = |policy: &serde_json::Value| policy["finalRetention"]["seconds"].as_u64();
    assert_eq!((seconds(&page["routes"][0]), seconds(&page)), (Some(1), Some(24 * 3600)));
    let applied = gateway.post("/status/200", "applied", "{}").await.unwrap();
    for path in ["/status/422", "/status/500"] {
        let key = &path.replace('/', "-");
        let first = gateway.post(path, key, "{}").await.unwrap();
        let expiry = |answer: &ClientResponse| answer.headers["idempotency-key-expires"].clone();
        assert_ne!(expiry(&first), expiry(&applied), "{path}");
        until("the refusal has expired", async || !gateway.post(path, key, "{}").await.unwrap().is_replayed()).await;
    }
    assert!(gateway.post("/status/200", "applied", "{}").await.unwrap().is_replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_chooses_which_requests_are_protected_h40() {
    let api = Api::start().await;
    let (gateway, _directory) = start_with_routes(
        &api,
        "[[route]]\npath = '/search/{*rest}'\nprotect = 'off'\n\
         [[route]]\npath = '/maybe'\nprotect = 'optional'\n\
         [[route]]\nmethod = ['PUT', 'DELETE']\npath = '/orders/{id}'\n\
         [[route]]\npath = '/body'\nkey-from = 'json:/id'\n\
         [[route]]\npath = '/header'\nkey-from = 'header:X-Request-Id'\n",
    )
    .await;
    for (method, path, fields, body, first, second) in [
        ("POST", "/search/a/b", KEY, "{}", 201, "fresh"),
        ("POST", "/search/a/b", &[], "{}", 201, "fresh"),
        ("POST", "/maybe", &[], "{}", 201, "fresh"),
        ("PATCH", "/maybe", KEY, "{}", 201, "replayed"),
        ("PUT", "/orders/8", &[("idempotency-key", "8")], "{}", 201, "replayed"),
        ("DELETE", "/orders/9", &[("idempotency-key", "9")], "", 201, "replayed"),
        ("PUT", "/orders/7", &[], "{}", 400, "key-missing"),
        ("PUT", "/orders", &[], "{}", 201, "fresh"),
        ("POST", "/orders/7", &[], "{}", 400, "key-missing"),
        ("POST", "/body", &[], "{\"id\":\"7\"}", 201, "replayed"),
        ("POST", "/body", &[("idempotency-key", "x")], "{}", 400, "key-missing"),
    ] {
        let got = send(&gateway, method, path, fields, body).await;
        assert_eq!(got.status.as_u16(), first, "{method} {path} {fields:?}: {}", got.body);
        let got = send(&gateway, method, path, fields, body).await;
        let outcome = if got.status == 400 {
            got.problem()
        } else if got.is_replayed() {
            "replayed"
        } else {
            "fresh"
        };
        assert_eq!(outcome, second, "{method} {path} {fields:?}");
    }
    for (method, path, place) in [
        ("PUT", "/orders/7", "one Idempotency-Key field"),
        ("POST", "/header", "one x-request-id field"),
        ("POST", "/body", "the member /id of the JSON body"),
    ] {
        let got = send(&gateway, method, path, &[], "{}").await;
        assert!(got.problem() == "key-missing" && got.body.contains(&format!("in {place}.")), "{path}: {}", got.body);
    }
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    let member = |route: usize, name: &str| page["routes"][route][name].to_string();
    assert_eq!((member(0, "path"), member(0, "protected")), ("\"/search/{*rest}\"".into(), "false".into()));
    assert_eq!((member(1, "keyRequired"), member(2, "methods")), ("false".into(), "[\"PUT\",\"DELETE\"]".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_path_does_not_bypass_a_route_h41() {
    let api = Api::start().await;
    let (gateway, _directory) = start_with_routes(&api, "[[route]]\nmethod = 'PUT'\npath = '/orders/{id}'\n").await;
    let slashes_and_dots = ["/orders/a%2Fb", "/orders%2f7", "/x/%2e%2e/orders/7", "//orders/7", "/orders/.%2e"];
    let parameters = ["/orders;x/7", "/orders/7;x=1", "/;x/orders/7", "/orders%3bx/7", "/x/..;/orders/7"];
    for path in slashes_and_dots.into_iter().chain(parameters) {
        let got = send(&gateway, "PUT", path, KEY, "{}").await;
        assert!(got.status == 400 && got.body.contains("write it plainly"), "{path}: {} {}", got.status, got.body);
    }
    assert_eq!(api.seen().len(), 0);
    for path in ["/projects/a%2Fb/hooks/1", "/projects;x=1/7/hooks", "/%6frders"] {
        assert_eq!(send(&gateway, "PUT", path, &[], "{}").await.status, 201, "{path}");
    }
    assert_eq!(api.seen()[0].path, "/projects/a%2Fb/hooks/1", "the path must not be changed");
    for path in ["/%6frders/7", "/orders/7/"] {
        assert_eq!(send(&gateway, "PUT", path, &[], "{}").await.problem(), "key-missing", "{path}");
    }
}
