//! Runs the program and sends it requests.

#[path = "../../program.rs"]
mod program;

use program::Program;

fn start(records: &tempfile::TempDir) -> Program {
    let records = records.path().join("records.db");
    Program::start(env!("CARGO_BIN_EXE_example-axum-payments"), &[records.to_str().expect("the path is UTF-8"), "0"])
}

#[test]
fn a_copy_gets_the_same_charge_even_after_a_crash() {
    let records = tempfile::tempdir().unwrap();
    let payments = start(&records);
    let first = payments.post("/charges", "order-1", "500");
    assert!(first.status == 201 && first.body.starts_with("charged 500 cents for "), "{}", first.body);
    assert!(!first.is_replay());
    let copy = payments.post("/charges", "order-1", "500");
    assert_eq!((copy.status, copy.is_replay(), &copy.body), (201, true, &first.body));
    assert_eq!(payments.get("/charges").body.lines().count(), 1);

    drop(payments);
    let payments = start(&records);
    let copy = payments.post("/charges", "order-1", "500");
    assert_eq!((copy.status, copy.is_replay(), &copy.body), (201, true, &first.body));
    assert_eq!(payments.get("/charges").body, "", "the new process charged nothing");
}

#[test]
fn a_charge_that_was_not_applied_leaves_the_key_free() {
    let records = tempfile::tempdir().unwrap();
    let payments = start(&records);
    payments.send("PUT /provider", "", "closed");
    let refused = payments.post("/charges", "order-1", "500");
    assert_eq!((refused.status, refused.body.as_str()), (409, "the provider is closed\n"));
    payments.send("PUT /provider", "", "open");
    let charged = payments.post("/charges", "order-1", "500");
    assert_eq!((charged.status, charged.is_replay()), (201, false));
    assert_eq!(payments.get("/charges").body.lines().count(), 1);
}

#[test]
fn another_amount_under_the_same_key_is_refused() {
    let records = tempfile::tempdir().unwrap();
    let payments = start(&records);
    assert_eq!(payments.post("/charges", "order-1", "500").status, 201);
    assert_eq!(payments.post("/charges", "order-1", "600").status, 422);
    assert_eq!(payments.get("/charges").body.lines().count(), 1);
}

#[test]
fn the_policy_page_is_served() {
    let records = tempfile::tempdir().unwrap();
    let page = start(&records).get("/.well-known/idempotency");
    assert!(page.status == 200 && page.body.contains("\"caller\": \"authorization\""), "{}", page.body);
}

/// A newcomer reads only the marked part of the program, so it must stay short.
#[test]
fn the_integration_has_at_most_25_lines() {
    let source = include_str!("../src/main.rs");
    let (_, integration) =
        source.split_once("// The integration with Hapax begins here ...\n").expect("the part is marked");
    let (integration, _) = integration.split_once("// ... and ends here.\n").expect("the part is marked");
    assert!(integration.lines().filter(|line| !line.is_empty()).count() <= 25);
}
