//! What a client gets, in words: its status, for a problem its name and what it says about retries, and the words of the fields that
//! came with it. `503 store-unavailable same-key retry-after`, `201 replayed expires`.

use serde_json::Value;

use crate::world::Got;

/// Fields of the contract, and the words for them.
const FIELDS: [(&str, &str); 5] = [
    ("idempotent-replayed", "replayed"),
    ("idempotency-key-expires", "expires"),
    ("retry-after", "retry-after"),
    ("hapax-recorded", "pending"),
    ("hapax-unrecorded", "unrecorded"),
];

/// What comes before there is a record to name.
const WITHOUT_RECORD: [&str; 6] =
    ["key-missing", "key-malformed", "caller-unknown", "body-cut", "body-timeout", "body-too-large"];

/// What was got, in words; `cut` if the connection was.
pub(crate) fn told(got: &Option<Got>) -> String {
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

/// The name of a problem and its advice, when all that every problem says is there.
fn problem(got: &Got) -> [String; 2] {
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
