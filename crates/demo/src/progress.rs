//! Counters of a run. The parts of the demo wait for them, and the terminal shows them.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::number_format::grouped;

/// The counters of a run.
#[derive(Debug)]
pub(super) struct Progress {
    started: Instant,
    payments: u32,
    crashes_due: u32,
    settled: watch::Sender<u32>,
    crashes: watch::Sender<u32>,
    requests: AtomicU64,
    repeated: AtomicU32,
}

impl Progress {
    /// Creates the counters for a run with this many payments and crashes.
    pub(super) fn new(payments: u32, crashes_due: u32) -> Self {
        Self {
            started: Instant::now(),
            payments,
            crashes_due,
            settled: watch::Sender::new(0),
            crashes: watch::Sender::new(0),
            requests: AtomicU64::new(0),
            repeated: AtomicU32::new(0),
        }
    }

    /// Waits until this payment may start. A payment may be ahead of the crashes by one crash, so that every crash
    /// finds some running.
    pub(super) async fn wait_for_turn(&self, payment: u32) {
        let before = u64::from(payment) * u64::from(self.crashes_due) / u64::from(self.payments.max(1));
        wait_until(&self.crashes, u32::try_from(before).unwrap_or(u32::MAX)).await;
    }

    /// Counts a payment with a final response.
    pub(super) fn count_settled(&self) {
        self.settled.send_modify(|settled| *settled += 1);
    }

    /// Counts a payment that was repeated after the last crash.
    pub(super) fn count_repeated(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a crash.
    pub(super) fn count_crash(&self) {
        self.crashes.send_modify(|crashes| *crashes += 1);
    }

    /// Returns the duration of the run.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until this many payments are settled.
    pub(super) async fn wait_for_settled(&self, payments: u32) {
        wait_until(&self.settled, payments).await;
    }

    /// Waits until all crashes have happened.
    pub(super) async fn wait_for_crashes(&self) {
        wait_until(&self.crashes, self.crashes_due).await;
    }

    /// Shows the counters, and more behind them, until the future is dropped: in place on a terminal, else one line
    /// every 2 s.
    pub(super) async fn show(&self, more: impl Fn() -> String) -> Infallible {
        let display = ProgressDisplay::of_this_process();
        let mut ticks = interval(display.pause());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            display.draw(&format!("{self}{}", more()));
        }
    }
}

async fn wait_until(counter: &watch::Sender<u32>, count: u32) {
    // `wait_for` fails only if the sender is dropped, and it is borrowed here.
    let _ = counter.subscribe().wait_for(|seen| *seen >= count).await;
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settled = *self.settled.borrow();
        let repeated = self.repeated.load(Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        write!(f, "{:>4} s", self.elapsed().as_secs())?;
        write!(f, "   payments {}/{}", grouped(settled), grouped(self.payments))?;
        write!(f, "   requests {}", grouped(requests))?;
        if self.crashes_due > 0 {
            write!(f, "   crashes {}/{}", *self.crashes.borrow(), self.crashes_due)?;
        }
        if repeated > 0 {
            write!(f, "   repeated {}", grouped(repeated))?;
        }
        Ok(())
    }
}

enum ProgressDisplay {
    Terminal,
    Lines,
}

impl ProgressDisplay {
    fn of_this_process() -> Self {
        if io::stderr().is_terminal() { Self::Terminal } else { Self::Lines }
    }

    fn pause(&self) -> Duration {
        match self {
            Self::Terminal => Duration::from_millis(100),
            Self::Lines => Duration::from_secs(2),
        }
    }

    fn draw(&self, progress: &str) {
        let mut stderr = io::stderr().lock();
        // The run goes on if standard error is closed.
        let _ = match self {
            Self::Terminal => write!(stderr, "\r{progress}\x1b[K"),
            Self::Lines => writeln!(stderr, "{progress}"),
        };
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Self::Terminal = self {
            eprint!("\r\x1b[K");
        }
    }
}
