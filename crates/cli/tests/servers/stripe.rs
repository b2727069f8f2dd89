//! The library of Stripe for Node.js, with the profile `stripe`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hapax_testkit::servers::{self, Trial};
use serde_json::{Value, json};

use crate::harness::Gateway;

const LIBRARY: &str = "stripe-node";

pub(crate) fn tests() -> Vec<Trial> {
    vec![servers::test("the_library_of_stripe_pays_once_with_its_profile", LIBRARY, async || {
        let mut shop = Shop::start();
        let api = format!("127.0.0.1:{}", shop.line()).parse().unwrap();
        let gateway = Gateway::start(api, "memory:", &["--profile", "stripe"]).await;
        let found = tokio::task::block_in_place(|| shop.pay(gateway.public.port()));
        check(&found);
    })]
}

fn check(found: &Value) {
    assert_eq!(found["first"], json!({ "id": "id_1", "request": "req_1", "replayed": false }));
    assert_eq!(found["again"], json!({ "id": "id_1", "request": "req_1", "replayed": true }));
    // Stripe itself answers 400 here, for which alone the library has a class of its own. The status stays that of H8.
    assert_eq!(found["reused"], json!({ "error": "StripeAPIError", "code": "key-reused", "status": 422 }));
    assert_eq!(found["account"]["id"], "id_2", "another account of the same credential");
    assert_eq!(found["keyless"]["id"], "id_3");
    assert_eq!((&found["deleted"]["id"], &found["deletedAgain"]["id"]), (&json!("id_4"), &json!("id_4")));
    let [one, other] = [&found["simultaneous"][0], &found["simultaneous"][1]];
    assert!(one["id"].is_string() && one["id"] == other["id"], "the library retries 409: {found}");
    assert_eq!(found["refunds"], 1);
    assert_eq!((&found["failed"]["status"], &found["payouts"]), (&json!(500), &json!(1)), "500 is final");
}

/// The shop, which also is the API. It ends when it is dropped.
struct Shop {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Shop {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut script = Command::new(root.join("../../fixtures").join(LIBRARY).join("server.sh"));
        script.arg(root.join("tests/servers/stripe/shop.js")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What the library returned for each call.
    fn pay(&mut self, gateway: u16) -> Value {
        writeln!(self.child.stdin.take().unwrap(), "{gateway}").unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
