//! Whether the time of an answer tells that somebody else has used a key.
//!
//! HAPAX_TIMING=20000 and a release build for the recorded run, which judges; the tests send few, and judge what was answered alone.

use std::env;
use std::time::{Duration, Instant};

use crate::world::{Api, Gateway};

/// Requests of each kind in the tests.
const SAMPLES: usize = 50;

/// The largest distance between the two distribution functions of these samples (Kolmogorov and Smirnov).
fn distance(one: &mut [Duration], other: &mut [Duration]) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    let share = |samples: &[Duration], limit: Duration| {
        fraction(samples.partition_point(|sample| *sample <= limit), samples.len())
    };
    let steps = one.iter().chain(other.iter());
    steps.map(|limit| (share(one, *limit) - share(other, *limit)).abs()).fold(0.0, f64::max)
}

/// How far two samples of one distribution are apart in one of a thousand cases.
fn critical(one: usize, other: usize) -> f64 {
    1.95 * (fraction(one + other, one) / fraction(other, 1)).sqrt()
}

fn fraction(part: usize, whole: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap());
    number(part) / number(whole)
}

#[test]
fn the_distance_of_two_samples_is_what_it_is_by_hand() {
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
    // 1.95 * sqrt(2 / 10,000), as tables have it.
    assert!((critical(10_000, 10_000) - 0.02758).abs() < 1e-4);
}

/// A key that another tenant has used is as new as one that nobody has, also by the clock.
#[tokio::test(flavor = "multi_thread")]
async fn how_long_an_answer_takes_does_not_tell_that_another_tenant_used_the_key_h6() {
    let asked = env::var("HAPAX_TIMING").ok();
    let samples = asked.as_ref().map_or(SAMPLES, |samples| samples.parse().unwrap());
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = crate::world::sqlite(directory.path());
    // A disk that is busy with other things is no outage here.
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
    // By turns, so that whatever else changes meanwhile changes for both.
    for number in 0..samples {
        for (kind, took) in [("used", &mut used), ("new", &mut unused)] {
            let (got, elapsed) = send("attacker", &format!("{kind}-{number}")).await;
            assert!(got.status == 201 && !got.replayed(), "{kind}: {}", got.body);
            took.push(elapsed);
        }
    }
    assert_eq!(api.seen().len(), 3 * samples);
    let (distance, critical) = (distance(&mut used, &mut unused), critical(samples, samples));
    let median = (used[samples / 2], unused[samples / 2]);
    println!("{samples} of each: distance {distance:.4}, critical {critical:.4} at 0.001; medians {median:?}");
    assert!(asked.is_none() || distance < critical, "the times of used keys and of new ones differ");
}
