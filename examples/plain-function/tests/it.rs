//! Runs the program and reads what it prints.

use std::process::Command;

#[test]
fn an_order_delivered_twice_is_charged_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-plain-function")).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("the program prints text");
    let [fresh, replayed, refused, charged] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("the program prints four lines, not:\n{text}");
    };
    let first = fresh.strip_suffix(" (Fresh)").expect("the first delivery runs");
    assert!(first.starts_with("order-7: charge 1: 500 cents for "), "{first}");
    assert_eq!(replayed, format!("{first} (Replayed)"));
    assert_eq!(refused, "order-7: not for 600 cents, the key was used for another amount");
    assert_eq!(charged, "charged 1 time(s)");
}
