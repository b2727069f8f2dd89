//! A page of another origin in a browser.

use hapax_testkit::servers::{self, Trial};
use serde_json::json;

use crate::browser::Browser;
use crate::harness::{Api, Gateway};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_page_of_a_named_origin_reads_a_replay_and_a_problem", "chromium", async || {
            let (api, shop) = (Api::start().await, Api::start().await);
            let gateway = Gateway::start(api.address, "memory:", &["--cors-origin", &origin(&shop)]).await;
            tokio::task::block_in_place(|| read_all(&mut Browser::start(), &shop, &gateway));
        }),
        servers::test("a_page_of_an_origin_without_a_name_reads_nothing", "chromium", async || {
            let (api, shop, other) = (Api::start().await, Api::start().await, Api::start().await);
            let gateway = Gateway::start(api.address, "memory:", &["--cors-origin", &origin(&shop)]).await;
            tokio::task::block_in_place(|| {
                let mut browser = Browser::start();
                browser.open(&format!("{}/page", origin(&other)));
                assert_eq!(fetch(&mut browser, &gateway, "{}"), json!({ "error": "TypeError" }));
            });
            assert_eq!(api.count(), 0, "the browser sends no request after a refused preflight");
        }),
    ]
}

fn origin(api: &Api) -> String {
    format!("http://{}", api.address)
}

fn read_all(browser: &mut Browser, shop: &Api, gateway: &Gateway) {
    browser.open(&format!("{}/page", origin(shop)));
    let fresh = fetch(browser, gateway, "{}");
    assert_eq!(fresh, json!({ "status": 201, "replayed": null, "expires": true, "body": "answer 1" }));
    let replay = fetch(browser, gateway, "{}");
    assert_eq!(replay, json!({ "status": 201, "replayed": "true", "expires": true, "body": "answer 1" }));
    let problem = fetch(browser, gateway, r#"{"amount":2}"#);
    assert_eq!(problem["status"], 422);
    assert!(problem["body"].as_str().unwrap().contains("key-reused"), "{problem}");
}

/// The parts of the response that the page of the browser can read.
fn fetch(browser: &mut Browser, gateway: &Gateway, body: &str) -> serde_json::Value {
    let url = json!(format!("http://{}/open", gateway.public));
    let headers = json!({ "authorization": "Bearer of-a-page", "idempotency-key": "of-a-page" });
    let options = format!("{{ method: 'POST', credentials: 'include', headers: {headers}, body: {} }}", json!(body));
    browser.until("location.href != 'about:blank'");
    browser.evaluate(&format!(
        "window.got = null; (async () => {{ try {{ const response = await fetch({url}, {options}); const field = name \
         => response.headers.get(name); window.got = {{ status: response.status, replayed: \
         field('idempotent-replayed'), expires: field('idempotency-key-expires') !== null, body: await \
         response.text() }} }} catch (error) {{ window.got = {{ error: error.name }} }} }})()"
    ));
    browser.until("window.got");
    browser.evaluate("window.got")
}
