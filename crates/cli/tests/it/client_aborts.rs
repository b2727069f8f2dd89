//! Clients that close their connection at any moment of a request. Every key ends completed once, or unknown for a
//! reason.

use std::collections::HashMap;
use std::env;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};

use crate::harness::{Api, Gateway, until};
use crate::raw_http::RawConnection;

/// A tenth of the recorded run, which sets HAPAX_ABORTS=10000.
const ABORTS: usize = 1_000;

/// The latest abort. A request takes less, so aborts happen at every moment: before its first byte, and also after its
/// response.
const LATEST_MICROS: u64 = 4_000;

#[tokio::test(flavor = "multi_thread")]
async fn every_aborted_request_ends_completed_once_or_unknown_h13() {
    let aborts = env::var("HAPAX_ABORTS").map_or(ABORTS, |aborts| aborts.parse().unwrap());
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = crate::harness::sqlite(directory.path());
    let gateway = Gateway::start(api.address, &store, &["--tenant", "none", "--lease", "2s"]).await;
    let mut moments = Moments(0x9e37_79b9_7f4a_7c15);
    let drawn: Vec<_> = (0..aborts).map(|number| (number, moments.next(), moments.next())).collect();
    stream::iter(&drawn).for_each_concurrent(32, |(number, moment, cut)| abort(&gateway, *number, *moment, *cut)).await;

    let ends =
        stream::iter(0..aborts).map(|number| end(&gateway, number)).buffer_unordered(32).collect::<Vec<_>>().await;
    let count = |wanted: &str| ends.iter().filter(|(_, end)| end.starts_with(wanted)).count();
    println!(
        "{aborts} aborts: {} had run, {} had not run and ran at the retry, {} unknown",
        count("replayed"),
        count("fresh"),
        count("unknown")
    );
    assert_one_effect_each(&api, &ends);
    assert_eq!(count("unknown"), 0, "only clients failed, so every outcome must be known");
}

/// Sends a request or its beginning, then closes or resets the connection.
async fn abort(gateway: &Gateway, number: usize, moment: u64, cut: u64) {
    let request =
        format!("POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k{number}\r\ncontent-length: 2\r\n\r\n{{}}");
    // A quarter of the requests is incomplete; half of the connections are reset, the others closed.
    let length = if cut.is_multiple_of(4) { usize::try_from(cut).unwrap() / 4 % request.len() } else { request.len() };
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(&request.as_bytes()[..length]).await;
    let leaves = Instant::now() + Duration::from_micros(moment % LATEST_MICROS);
    // Busy waiting, because a timer is too coarse for microseconds.
    while Instant::now() < leaves {
        tokio::task::yield_now().await;
    }
    if cut.is_multiple_of(2) { wire.reset() } else { drop(wire) }
}

/// Returns the final response to a retry.
async fn end(gateway: &Gateway, number: usize) -> (usize, String) {
    let key = format!("k{number}");
    let mut end = String::new();
    until("the key settles", async || {
        let Some(got) = gateway.post("/charges", &key, "{}").await else { return false };
        end = match got.status.as_u16() {
            201 if got.is_replayed() => format!("replayed {}", got.body),
            201 => format!("fresh {}", got.body),
            409 if got.problem() == "outcome-unknown" => "unknown".into(),
            _ => return false,
        };
        true
    })
    .await;
    (number, end)
}

fn assert_one_effect_each(api: &Api, ends: &[(usize, String)]) {
    let mut effects: HashMap<String, usize> = HashMap::new();
    for seen in api.seen() {
        *effects.entry(seen.headers["idempotency-key"].to_str().unwrap().into()).or_default() += 1;
    }
    for (number, end) in ends {
        let count = effects.get(&format!("k{number}")).copied().unwrap_or_default();
        // An unknown outcome may also mean that the API has not seen the request.
        assert!(count == 1 || (count == 0 && end == "unknown"), "k{number} ended {end:?} with {count} effects");
    }
}

/// A xorshift generator, so that every run aborts at the same moments.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
