//! The clients: each wants one payment made, and behaves as badly as its [`Manner`] says.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::board::Board;
use super::chance::{Chance, Topic};
use super::note::{Exchange, Note};
use super::service::Service;
use super::traffic::{Asked, HangUp, Manner, Payment};
use super::wire::{Reply, Wire};

/// All clients of a run.
#[derive(Debug)]
pub(super) struct Crowd(Vec<Arc<Customer>>);

impl Crowd {
    /// A client for each payment.
    pub(super) fn new(seed: u64, payments: u32, world: &Arc<World>) -> Self {
        let customer = |number| {
            Arc::new(Customer {
                seed,
                world: Arc::clone(world),
                note: Mutex::new(Note::new(Payment::new(seed, number))),
                payment: Payment::new(seed, number),
            })
        };
        Self((0..payments).map(customer).collect())
    }

    /// Every client pays.
    pub(super) async fn pay(&self) -> anyhow::Result<()> {
        self.some_at_a_time(|customer| async move { customer.pay().await }).await
    }

    /// Every client asks once more, long after.
    pub(super) async fn ask_once_more(&self) -> anyhow::Result<()> {
        self.some_at_a_time(|customer| async move { customer.ask_once_more().await }).await
    }

    /// What they wrote down.
    pub(super) fn notes(&self) -> Vec<Note> {
        self.0.iter().map(|customer| customer.note().clone()).collect()
    }

    async fn some_at_a_time<F>(&self, visit: fn(Arc<Customer>) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for customer in &self.0 {
            if running.len() == AT_A_TIME
                && let Some(ended) = running.join_next().await
            {
                ended.context("a client broke")?;
            }
            running.spawn(visit(Arc::clone(customer)));
        }
        while let Some(ended) = running.join_next().await {
            ended.context("a client broke")?;
        }
        Ok(())
    }
}

const AT_A_TIME: usize = 32;

/// What the clients share.
#[derive(Debug)]
pub(super) struct World {
    wire: Wire,
    service: Arc<Service>,
    board: Arc<Board>,
    moments: AtomicU64,
}

impl World {
    /// Requests go over the wire; when they reach the service matters to clients that time their mischief.
    pub(super) fn new(wire: Wire, service: Arc<Service>, board: Arc<Board>) -> Arc<Self> {
        Arc::new(Self { wire, service, board, moments: AtomicU64::new(0) })
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Customer {
    seed: u64,
    payment: Payment,
    world: Arc<World>,
    note: Mutex<Note>,
}

impl Customer {
    async fn pay(&self) {
        match self.payment.manner {
            Manner::Plain => self.settle(Asked::Order).await,
            Manner::Again { times } => self.settle_again(times).await,
            Manner::Twins { count } => {
                join_all((0..count).map(|_| self.settle(Asked::Order))).await;
            }
            Manner::ChangedAfter => {
                self.settle(Asked::Order).await;
                self.settle(Asked::Changed).await;
            }
            Manner::ChangedMeanwhile => self.change_meanwhile().await,
            Manner::HangUp(how) => {
                self.hang_up(how).await;
                self.settle(Asked::Order).await;
            }
        }
        while self.requests() < REQUESTS_AT_FIRST {
            self.settle(Asked::Order).await;
        }
        self.world.board.settle();
    }

    async fn ask_once_more(&self) {
        for _ in 0..REQUESTS_LATER {
            self.settle(Asked::Order).await;
        }
        if self.payment.is_changed() {
            self.settle(Asked::Changed).await;
        }
        self.world.board.ask_again();
    }

    async fn settle_again(&self, times: u32) {
        for _ in 0..=times {
            self.settle(Asked::Order).await;
        }
    }

    /// Sends the changed order as soon as the first one has been received: before, it might be the first one itself.
    async fn change_meanwhile(&self) {
        let settled = CancellationToken::new();
        let order = async {
            self.settle(Asked::Order).await;
            settled.cancel();
        };
        let changed = async {
            tokio::select! {
                () = self.world.service.received(self.payment.number) => {}
                () = settled.cancelled() => {}
            }
            self.settle(Asked::Changed).await;
        };
        tokio::join!(order, changed);
    }

    /// Asks until the answer settles the payment.
    async fn settle(&self, asked: Asked) {
        let started = Instant::now();
        loop {
            let reply = self.ask(asked).await;
            if reply.answer.is_final() {
                return;
            }
            if started.elapsed() > PATIENCE {
                self.note().gave_up = true;
                return;
            }
            sleep(self.pause(&reply)).await;
        }
    }

    async fn ask(&self, asked: Asked) -> Reply {
        let sent = self.world.moment();
        let running = self.world.board.request();
        let reply = self.world.wire.ask(&self.payment, asked).await;
        drop(running);
        self.write_down(asked, sent, reply.answer.clone());
        reply
    }

    async fn hang_up(&self, how: HangUp) {
        let sent = self.world.moment();
        let running = self.world.board.request();
        let answer = self.world.wire.hang_up(&self.payment, how).await;
        drop(running);
        self.write_down(Asked::Order, sent, answer);
    }

    fn write_down(&self, asked: Asked, sent: u64, answer: Answer) {
        let heard = self.world.moment();
        self.note().exchanges.push(Exchange { asked, answer, sent, heard });
    }

    /// As long as the server asks for, but a demo is short; else a moment.
    fn pause(&self, reply: &Reply) -> Duration {
        let place = [self.payment.number.into(), self.requests() as u64];
        let jitter = Chance::new(self.seed, Topic::Pause, &place).between(10, 40);
        let asked_for = reply.retry_after.unwrap_or_default();
        asked_for.min(LONGEST_PAUSE) + Duration::from_millis(jitter)
    }

    fn requests(&self) -> usize {
        self.note().requests()
    }

    fn note(&self) -> MutexGuard<'_, Note> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a client goes on asking.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Every payment is asked for at least so often before the last crash, and so often after it.
const REQUESTS_AT_FIRST: usize = 3;
const REQUESTS_LATER: usize = 2;
