//! The pause between two looks at a condition.

use std::time::Duration;

/// Long enough to leave the processors to what a test waits for, and short beside that.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits 5 ms, in the time of tokio.
///
/// # Cancel safety
/// Safe to drop.
pub async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
