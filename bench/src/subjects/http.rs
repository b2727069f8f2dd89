use std::ops::Range;

use tokio::runtime::Builder;

use crate::harness::{Limit, MeasuredBatch, Subject, per_second};
use crate::requests::{Middleware, app, send};

const REQUESTS: u64 = 50_000;

/// The layer around a handler that answers at once, with a new key for each request.
pub(crate) fn fresh() -> Subject {
    Subject {
        name: "HTTP layer, new keys",
        what: "a request through the layer on the memory store, and its answer; in one task, no socket",
        run: requests(Middleware::Idempotency, 0..REQUESTS),
        limit: Some(Limit {
            what: "the same behind a layer that only collects the body",
            run: requests(Middleware::CollectBody, 0..REQUESTS),
            at_least: None,
        }),
    }
}

/// The layer around the same handler, with one key for all requests.
pub(crate) fn replays() -> Subject {
    Subject {
        name: "HTTP layer, replays",
        what: "a copy of a request that was answered",
        run: requests(Middleware::Idempotency, 0..1),
        limit: Some(Limit {
            what: "the same behind a layer that only collects the body",
            run: requests(Middleware::CollectBody, 0..1),
            at_least: None,
        }),
    }
}

/// The handler alone.
pub(crate) fn bare() -> Subject {
    Subject {
        name: "the handler alone",
        what: "the same request and answer, with no layer",
        run: requests(Middleware::Bare, 0..REQUESTS),
        limit: None,
    }
}

/// A batch of requests that use the keys of this range in turn.
fn requests(middleware: Middleware, keys: Range<u64>) -> MeasuredBatch {
    Box::new(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut app = runtime.block_on(async { app(middleware) })?;
        let mut figures = per_second(usize::try_from(REQUESTS)?, || {
            runtime.block_on(async {
                for number in 0..REQUESTS {
                    send(&mut app, keys.start + number % (keys.end - keys.start)).await?;
                }
                Ok(())
            })
        })?;
        figures.note = format!("{:.2} us a request", 1e6 / figures.rate);
        Ok(figures)
    })
}
