//! The window that all streams of an HTTP/2 connection share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::gateway::limits::{CONNECTION_WINDOW, WINDOW};

/// The number of bodies that fill the window of a connection while nobody reads them. Each fills its own window.
const BODIES: u32 = CONNECTION_WINDOW / WINDOW;

/// For how long the bodies that wait for the API have occupied the window of a connection. Its other streams cannot
/// send meanwhile.
///
/// h2 does not say how much of a window is left, so every body that waits counts as one that fills its own window.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedWindow(Arc<Mutex<WindowState>>);

#[derive(Debug, Default)]
struct WindowState {
    unread: u32,
    full_since: Option<Instant>,
    /// Without the time since `full_since`.
    full_time: Duration,
}

/// Counts as a body that the gateway does not read, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnreadBody(SharedWindow);

impl SharedWindow {
    pub(crate) fn count_unread(&self) -> UnreadBody {
        let mut state = self.0.lock();
        state.unread += 1;
        if state.unread == BODIES {
            state.full_since = Some(Instant::now());
        }
        UnreadBody(self.clone())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.lock().full_since.is_some()
    }

    /// For how long the window has been full since the connection began.
    pub(crate) fn full_time(&self) -> Duration {
        let state = self.0.lock();
        state.full_time + state.full_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.unread -= 1;
        if state.unread < BODIES
            && let Some(since) = state.full_since.take()
        {
            state.full_time += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn the_window_is_full_while_four_bodies_are_unread() {
        const SECOND: Duration = Duration::from_secs(1);
        let window = SharedWindow::default();
        let mut unread: Vec<_> = (0..3).map(|_| window.count_unread()).collect();
        advance(SECOND).await;
        assert_eq!(window.full_time(), Duration::ZERO);
        unread.extend([window.count_unread(), window.count_unread()]);
        advance(SECOND).await;
        assert_eq!(window.full_time(), SECOND);
        unread.pop();
        advance(SECOND).await;
        assert_eq!(window.full_time(), SECOND * 2);
        unread.pop();
        advance(SECOND).await;
        assert_eq!(window.full_time(), SECOND * 2);
        unread.push(window.count_unread());
        advance(SECOND).await;
        assert_eq!(window.full_time(), SECOND * 3);
    }
}
