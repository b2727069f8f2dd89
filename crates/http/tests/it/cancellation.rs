//! Clients that disconnect at any moment.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use bytes::Bytes;
use hapax_http::RequestBody;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::task::yield_now;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{World, post};

/// The number of requests, unless the variable `HAPAX_DROPS` sets another.
const DROPS: u64 = 2_000;

/// A request is dropped after fewer steps than this, so that some requests finish and most are dropped while they run.
const STEPS: u64 = 16;

fn request(key: u64) -> Request<Full<Bytes>> {
    post(&format!("order-{key}"), "{}")
}

/// A pseudo-random number derived from its argument, so that each run of the test is the same.
fn pseudo_random(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 17
}

/// Yields to the other tasks this often.
async fn yield_times(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_request_dropped_at_any_step_has_its_effect_once_and_its_retry_gets_the_answer_h13() {
    let drops = std::env::var("HAPAX_DROPS").map_or(DROPS, |drops| drops.parse().expect("a number"));
    let (layer, mut finished_early) = (World::new().layer, 0);
    for number in 0..drops {
        let effects = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&effects);
        let service = layer.layer(service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
            let counted = Arc::clone(&counted);
            async move {
                // Steps before and after the effect, so that drops hit both sides of it.
                yield_times(pseudo_random(number) % 8).await;
                let effect = counted.fetch_add(1, Ordering::SeqCst) + 1;
                yield_times(pseudo_random(number + 1) % 8).await;
                Ok::<_, Infallible>(Response::new(Full::from(format!("effect {effect} of {number}"))))
            }
        }));
        let mut dropped = Box::pin(service.clone().oneshot(request(number)));
        for _ in 0..pseudo_random(number + 2) % STEPS {
            if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await {
                finished_early += 1;
                break;
            }
            yield_now().await;
        }
        drop(dropped);
        let answer = loop {
            let response = service.clone().oneshot(request(number)).await.unwrap();
            if response.status() != 409 {
                break response.into_body().collect().await.unwrap().to_bytes();
            }
            let problem = response.into_body().collect().await.unwrap().to_bytes();
            assert!(
                String::from_utf8_lossy(&problem).contains("in-progress"),
                "{number}: a dropped request must not make the outcome unknown"
            );
            yield_now().await;
        };
        assert_eq!(answer, format!("effect 1 of {number}"));
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{number}");
    }
    println!(
        "{drops} requests: {} dropped while running, {finished_early} after their response",
        drops - finished_early
    );
    assert!(finished_early * 2 < drops, "most requests are dropped while running");
}
