//! How far the run has come: what its parts tell each other, and what is shown meanwhile.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::report::grouped;

/// The counters of a run.
#[derive(Debug)]
pub(super) struct Board {
    started: Instant,
    payments: u32,
    crashes_due: u32,
    settled: watch::Sender<u32>,
    crashes: watch::Sender<u32>,
    running: watch::Sender<u64>,
    requests: AtomicU64,
    cut_short: AtomicU64,
    asked_again: AtomicU32,
}

impl Board {
    /// For so many payments and so many crashes.
    pub(super) fn new(payments: u32, crashes_due: u32) -> Self {
        Self {
            started: Instant::now(),
            payments,
            crashes_due,
            settled: watch::Sender::new(0),
            crashes: watch::Sender::new(0),
            running: watch::Sender::new(0),
            requests: AtomicU64::new(0),
            cut_short: AtomicU64::new(0),
            asked_again: AtomicU32::new(0),
        }
    }

    /// A payment has its answer.
    pub(super) fn settle(&self) {
        self.settled.send_modify(|settled| *settled += 1);
    }

    /// A payment was asked for once more, at the end.
    pub(super) fn ask_again(&self) {
        self.asked_again.fetch_add(1, Ordering::Relaxed);
    }

    /// A request begins; it ends when what is returned is dropped.
    pub(super) fn request(&self) -> Running<'_> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.running.send_modify(|running| *running += 1);
        Running(self)
    }

    /// The gateway was killed, in the midst of so many requests.
    pub(super) fn crash(&self, cut_short: u64) {
        self.cut_short.fetch_add(cut_short, Ordering::Relaxed);
        self.crashes.send_modify(|crashes| *crashes += 1);
    }

    /// How often the gateway was killed.
    pub(super) fn crashes(&self) -> u32 {
        *self.crashes.borrow()
    }

    /// How many requests were running when it was killed, over all crashes.
    pub(super) fn cut_short(&self) -> u64 {
        self.cut_short.load(Ordering::Relaxed)
    }

    /// How many requests are running.
    pub(super) fn running(&self) -> u64 {
        *self.running.borrow()
    }

    /// How long the run has taken.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until so many payments are settled.
    pub(super) async fn settled(&self, payments: u32) {
        reached(&self.settled, payments).await;
    }

    /// Waits until all crashes have happened.
    pub(super) async fn crashed(&self) {
        reached(&self.crashes, self.crashes_due).await;
    }

    /// Waits until so many requests are running.
    pub(super) async fn busy(&self, requests: u64) {
        reached(&self.running, requests).await;
    }

    /// Shows the counters until it is dropped: in place on a terminal, else a line now and then.
    pub(super) async fn show(&self) -> Infallible {
        let screen = Screen::of_this_process();
        let mut ticks = interval(screen.pause());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            screen.draw(self);
        }
    }
}

async fn reached<N: PartialOrd + 'static>(counter: &watch::Sender<N>, count: N) {
    // Cannot fail: the counter itself is held here.
    let _ = counter.subscribe().wait_for(|seen| *seen >= count).await;
}

/// A request that is running.
#[derive(Debug)]
pub(super) struct Running<'a>(&'a Board);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

impl fmt::Display for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settled = *self.settled.borrow();
        let asked_again = self.asked_again.load(Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        write!(f, "{:>4} s", self.elapsed().as_secs())?;
        write!(f, "   payments {}/{}", grouped(settled), grouped(self.payments))?;
        write!(f, "   requests {}", grouped(requests))?;
        if self.crashes_due > 0 {
            write!(f, "   crashes {}/{}", self.crashes(), self.crashes_due)?;
        }
        if asked_again > 0 {
            write!(f, "   asked once more {}", grouped(asked_again))?;
        }
        Ok(())
    }
}

enum Screen {
    Terminal,
    Lines,
}

impl Screen {
    fn of_this_process() -> Self {
        if io::stderr().is_terminal() { Self::Terminal } else { Self::Lines }
    }

    fn pause(&self) -> Duration {
        match self {
            Self::Terminal => Duration::from_millis(100),
            Self::Lines => Duration::from_secs(2),
        }
    }

    fn draw(&self, board: &Board) {
        let mut stderr = io::stderr().lock();
        // Progress that nobody can read is no reason to stop.
        let _ = match self {
            Self::Terminal => write!(stderr, "\r{board}\x1b[K"),
            Self::Lines => writeln!(stderr, "{board}"),
        };
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Self::Terminal = self {
            eprint!("\r\x1b[K");
        }
    }
}
