//! Runs the program and sends it requests.

#[path = "../../program.rs"]
mod program;

use program::Program;

#[test]
fn an_order_sent_twice_is_accepted_once() {
    let orders = Program::start(env!("CARGO_BIN_EXE_example-tower-service"), &["0"]);
    let first = orders.post("/orders", "order-1", "a book");
    assert!(first.status == 200 && first.body.starts_with("order 1: a book, operation "), "{}", first.body);
    assert!(!first.is_replay());
    let copy = orders.post("/orders", "order-1", "a book");
    assert_eq!((copy.status, copy.is_replay(), &copy.body), (200, true, &first.body));
    assert_eq!(orders.get("/orders").body, "orders: 1\n");
}
