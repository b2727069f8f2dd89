//! Counts the allocations of a request: with a new key, as a replay, and without the layer.

#[path = "../requests.rs"]
mod requests;

use allocation_counter::measure;
use tokio::runtime::Builder;

use requests::{Middleware, app, send};

const WARM: u64 = 1_000;
const MEASURED: u64 = 1_000;

fn main() -> anyhow::Result<()> {
    for (name, before, keys) in [
        ("the handler alone", Middleware::Bare, u64::MAX),
        ("behind a layer that collects the body", Middleware::CollectBody, u64::MAX),
        ("behind the idempotency layer, new keys", Middleware::Idempotency, u64::MAX),
        ("behind the idempotency layer, replays", Middleware::Idempotency, 1),
    ] {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut app = runtime.block_on(async { app(before) })?;
        let mut all = |numbers: std::ops::Range<u64>| {
            runtime.block_on(async {
                for number in numbers {
                    send(&mut app, number % keys).await?;
                }
                anyhow::Ok(())
            })
        };
        all(0..WARM)?;
        let mut outcome = Ok(());
        let counted = measure(|| outcome = all(WARM..WARM + MEASURED));
        outcome?;
        let (times, bytes) = (counted.count_total / MEASURED, counted.bytes_total / MEASURED);
        println!("{name}: {times} allocations, {bytes} bytes a request");
    }
    Ok(())
}
