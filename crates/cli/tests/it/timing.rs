//! Checks that response times do not reveal whether another tenant has used a key.
//!
//! The recorded run sets HAPAX_TIMING=20000, uses a release build and judges the times. The tests send fewer requests
//! and judge only the responses.

use std::env;
use std::time::{Duration, Instant};

use crate::harness::{Api, Gateway};

/// The number of requests of each kind.
const SAMPLES: usize = 50;

/// Returns the Kolmogorov-Smirnov distance of two samples: the largest distance of their distribution functions.
fn distance(one: &mut [Duration], other: &mut [Duration]) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    let share = |samples: &[Duration], limit: Duration| {
        fraction(samples.partition_point(|sample| *sample <= limit), samples.len())
    };
    let steps = one.iter().chain(other.iter());
    steps.map(|limit| (share(one, *limit) - share(other, *limit)).abs()).fold(0.0, f64::max)
}

/// Returns the critical distance at a significance level of 0.001.
fn critical(one: usize, other: usize) -> f64 {
    1.95 * (fraction(one + other, one) / fraction(other, 1)).sqrt()
}

fn fraction(part: usize, whole: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap());
    number(part) / number(whole)
}

#[test]
fn the_distance_of_two_samples_matches_a_manual_calculation() {
    let millis = |numbers: &[u64]| numbers.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
    for (one, other, expected) in [
        (&[1, 2, 3, 4][..], &[1, 2, 3, 4][..], 0.0),
        (&[1, 2], &[3, 4], 1.0),
        (&[1, 2, 3, 4], &[3, 4, 5, 6], 0.5),
        (&[1, 1, 1, 2], &[1, 2, 2, 2], 0.5),
        (&[5], &[1, 9], 0.5),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            let found = distance(&mut millis(one), &mut millis(other));
            assert!((found - expected).abs() < 1e-9, "{one:?} {other:?}: {found}");
        }
    }
    // 1.95 * sqrt(2 / 10,000), as in published tables.
    assert!((critical(10_000, 10_000) - 0.02758).abs() < 1e-4);
}

/// A request with a key that another tenant has used takes as long as a request with an unused key.
#[tokio::test(flavor = "multi_thread")]
async fn response_times_do_not_reveal_keys_of_other_tenants_h6() {
    let recorded = env::var("HAPAX_TIMING").ok();
    let samples = recorded.as_ref().map_or(SAMPLES, |samples| samples.parse().unwrap());
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = crate::harness::sqlite(directory.path());
    // A slow disk must not look like an outage of the store.
    let flags = ["--tenant", "header:x-account", "--store-timeout", "20s"];
    let gateway = Gateway::start(api.address, &store, &flags).await;
    let send = async |tenant: &str, key: &str| {
        let request = http::Request::post(format!("http://{}/charges", gateway.public));
        let request = request.header("x-account", tenant).header("idempotency-key", key);
        let began = Instant::now();
        let got = gateway.send(request.body("{}".into()).unwrap()).await.unwrap();
        (got, began.elapsed())
    };
    for number in 0..samples {
        assert_eq!(send("victim", &format!("used-{number}")).await.0.status, 201);
    }
    let (mut used, mut unused) = (Vec::new(), Vec::new());
    // Alternating, so that other load affects both kinds alike.
    for number in 0..samples {
        for (kind, took) in [("used", &mut used), ("new", &mut unused)] {
            let (got, elapsed) = send("attacker", &format!("{kind}-{number}")).await;
            assert!(got.status == 201 && !got.is_replayed(), "{kind}: {}", got.body);
            took.push(elapsed);
        }
    }
    assert_eq!(api.seen().len(), 3 * samples);
    let (distance, critical) = (distance(&mut used, &mut unused), critical(samples, samples));
    let median = (used[samples / 2], unused[samples / 2]);
    println!("{samples} of each: distance {distance:.4}, critical {critical:.4} at 0.001; medians {median:?}");
    assert!(recorded.is_none() || distance < critical, "the times of used keys and of new ones differ");
}
