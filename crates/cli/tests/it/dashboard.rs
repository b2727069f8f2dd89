//! The files of the dashboard. The tests with Chromium drive it.

use std::collections::BTreeSet;

use http::Request;
use http_body_util::Full;

use crate::harness::{Api, Gateway, sqlite};

/// The paths that a page or a script names: `href`, `src` and imports.
fn named(text: &str) -> Vec<String> {
    let quoted = text.split(['"', '\'']).skip(1);
    let files = quoted.filter(|word| !word.contains(char::is_whitespace));
    let files = files.filter(|word| word.ends_with(".js") || word.ends_with(".css"));
    files.map(|word| format!("/{}", word.trim_start_matches("./"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_is_served_without_a_token_and_loads_nothing_from_elsewhere() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    let (mut open, mut seen) = (vec!["/".to_owned()], BTreeSet::new());
    while let Some(path) = open.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let file = gateway.get(gateway.admin, &path).await.unwrap();
        assert_eq!(file.status, 200, "{path}");
        let field = |name: &str| file.headers.get(name).unwrap_or_else(|| panic!("{path} has no {name}")).to_str();
        let policy = field("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; ") && !policy.contains("unsafe"), "{path}");
        assert_eq!(field("x-content-type-options").unwrap(), "nosniff", "{path}");
        for forbidden in ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacent", "eval(", "document.write"]
        {
            assert!(!file.body.contains(forbidden), "{path} has {forbidden}");
        }
        open.extend(named(&file.body));
    }
    assert_eq!(seen.len(), 11, "{seen:?}");
    let request = Request::post(format!("http://{}/", gateway.admin)).body(Full::default()).unwrap();
    assert_eq!(gateway.send(request).await.unwrap().status, 405);
}
