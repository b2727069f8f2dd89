//! Summarizes a response in one line: its status, the name and retry advice of a problem, and a word for each field of
//! the contract. Examples: `503 store-unavailable same-key retry-after`, `201 replayed expires`.

use serde_json::Value;

use crate::harness::ClientResponse;

/// The fields of the contract and their words.
const FIELDS: [(&str, &str); 5] = [
    ("idempotent-replayed", "replayed"),
    ("idempotency-key-expires", "expires"),
    ("retry-after", "retry-after"),
    ("hapax-recorded", "pending"),
    ("hapax-unrecorded", "unrecorded"),
];

/// The problems without an `instance`, because there is no record yet.
const WITHOUT_RECORD: [&str; 6] =
    ["key-missing", "key-malformed", "caller-unknown", "body-cut", "body-timeout", "body-too-large"];

/// Summarizes a response; `cut` if the connection was closed instead.
pub(crate) fn summary(got: &Option<ClientResponse>) -> String {
    let Some(got) = got else { return "cut".into() };
    let mut words = vec![got.status.as_u16().to_string()];
    if got.headers.get("content-type").is_some_and(|kind| kind == "application/problem+json") {
        words.extend(problem(got));
    }
    for (field, word) in FIELDS {
        if let Some(value) = got.headers.get(field) {
            assert!(is_well_formed(field, value.to_str().unwrap()), "{field}: {value:?}");
            words.push(word.into());
        }
    }
    words.join(" ")
}

/// Checks the members that every problem has, and returns its name and retry advice.
fn problem(got: &ClientResponse) -> [String; 2] {
    let document: Value = serde_json::from_str(&got.body).unwrap();
    let member = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let name = member("type").strip_prefix("/.well-known/idempotency#").expect("a type of the contract").to_owned();
    assert_eq!(document["status"], got.status.as_u16(), "{name}");
    assert!(!member("title").is_empty() && !member("detail").is_empty(), "{name}");
    assert_eq!(got.headers["link"], "</.well-known/idempotency>; rel=\"describedby\"", "{name}");
    assert_eq!(got.headers["cache-control"], "no-store", "{name}");
    let is_urn = member("instance").strip_prefix("urn:hapax:record:").is_some_and(|rk| rk.len() == 32);
    assert_eq!(is_urn, !WITHOUT_RECORD.contains(&&*name), "{name}: {}", got.body);
    [name, member("retry")]
}

fn is_well_formed(field: &str, value: &str) -> bool {
    match field {
        "idempotency-key-expires" => value.len() == 29 && value.ends_with(" GMT"),
        "retry-after" => value.parse::<u64>().is_ok(),
        "hapax-recorded" => value == "pending",
        _ => value == "true",
    }
}
