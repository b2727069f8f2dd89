//! Checks that nothing reveals whether another tenant has used a key. The ordinary test compares the work of requests.
//! The ignored test measures 20,000 response times of each kind and compares their distributions.

use std::time::{Duration, Instant};

use hapax::telemetry::names;
use tempfile::TempDir;

use crate::harness::{Api, ClientResponse, Gateway};

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

/// Sends requests to one gateway as different tenants.
struct Tenants {
    api: Api,
    gateway: Gateway,
    _directory: TempDir,
}

impl Tenants {
    /// Starts a gateway and lets a tenant use this many keys.
    async fn start_with_used_keys(count: usize) -> Self {
        let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
        let store = crate::harness::sqlite(directory.path());
        // A slow disk must not look like an outage of the store.
        let flags = ["--tenant", "header:x-account", "--store-timeout", "20s", "--record-patience", "30s"];
        let gateway = Gateway::start(api.address, &store, &flags).await;
        let tenants = Self { api, gateway, _directory: directory };
        for number in 0..count {
            assert_eq!(tenants.send("victim", &format!("used-{number}")).await.0.status, 201);
        }
        tenants
    }

    /// Sends a request as this tenant, and returns how long it took, too.
    async fn send(&self, tenant: &str, key: &str) -> (ClientResponse, Duration) {
        let request = http::Request::post(format!("http://{}/charges", self.gateway.public));
        let request = request.header("x-account", tenant).header("idempotency-key", key);
        let began = Instant::now();
        let got = self.gateway.send(request.body("{}".into()).unwrap()).await.unwrap();
        (got, began.elapsed())
    }

    /// Sends a request as a tenant that has not used the key. Returns how long it took.
    async fn send_as_attacker(&self, key: &str) -> Duration {
        let (got, elapsed) = self.send("attacker", key).await;
        assert!(got.status == 201 && !got.is_replayed(), "{key}: {}", got.body);
        elapsed
    }

    /// The counters of the work that requests caused so far.
    async fn work(&self) -> Vec<f64> {
        let page = self.gateway.get(self.gateway.admin, "/metrics").await.unwrap().body;
        let count = |name: &str| {
            let lines = page.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit_once(' '));
            lines.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
        };
        let phases = [names::BEGIN_SECONDS, names::HANDLER_SECONDS, names::COMPLETE_SECONDS];
        let phases = phases.map(|name| format!("{name}_count"));
        [names::CALLS, names::CAUGHT].into_iter().chain(phases.iter().map(String::as_str)).map(count).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_tenant_has_used_causes_the_work_of_a_new_key_h6() {
    const KEYS: usize = 20;
    let tenants = Tenants::start_with_used_keys(KEYS).await;
    let mut work = vec![tenants.work().await];
    for kind in ["used", "new"] {
        for number in 0..KEYS {
            tenants.send_as_attacker(&format!("{kind}-{number}")).await;
        }
        work.push(tenants.work().await);
    }
    let of_batch = |batch: usize| work[batch + 1].iter().zip(&work[batch]).map(|(after, before)| after - before);
    assert_eq!(of_batch(0).collect::<Vec<_>>(), of_batch(1).collect::<Vec<_>>());
    assert!(of_batch(0).any(|count| count > 0.0), "{work:?}");
    assert_eq!(tenants.api.count(), 3 * KEYS);
}

#[ignore = "measures times; run it alone in a release build"]
#[tokio::test(flavor = "multi_thread")]
async fn response_times_do_not_reveal_keys_of_other_tenants() {
    const SAMPLES: usize = 20_000;
    let tenants = Tenants::start_with_used_keys(SAMPLES).await;
    let (mut used, mut unused) = (Vec::new(), Vec::new());
    // Alternating, so that other load affects both kinds alike.
    for number in 0..SAMPLES {
        used.push(tenants.send_as_attacker(&format!("used-{number}")).await);
        unused.push(tenants.send_as_attacker(&format!("new-{number}")).await);
    }
    let (distance, critical) = (distance(&mut used, &mut unused), critical(SAMPLES, SAMPLES));
    let median = (used[SAMPLES / 2], unused[SAMPLES / 2]);
    println!("{SAMPLES} of each: distance {distance:.4}, critical {critical:.4} at 0.001; medians {median:?}");
    assert!(distance < critical, "the times of used keys and of new ones differ");
}
