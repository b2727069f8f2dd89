//! The hostile client: it sends every request several times, at once and late, hangs up, and changes payloads.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::http_session::{HttpSession, Manners, WholeAnswer};
use crate::journal::{Payload, TransferJournal};
use crate::order::{TransferOrder, topic};
use crate::random::SplitMix;

/// How long the client retries one order. At the end of the run it asks once more.
const PATIENCE: Duration = Duration::from_secs(120);

/// The client of a run.
#[derive(Debug)]
pub(crate) struct HostileClient {
    pub(crate) gateways: Vec<SocketAddr>,
    pub(crate) journal: TransferJournal,
    pub(crate) seed: u64,
}

impl HostileClient {
    /// Orders a transfer until it has a definite answer, then sends copies of it.
    pub(crate) async fn order(&self, order: &TransferOrder) -> io::Result<()> {
        let mut random = SplitMix::new(self.seed, topic::CLIENT, order.number.into());
        let copies = if random.percent(30) { random.of(2..5) } else { 1 };
        let first: Vec<Manners> = (0..copies).map(|_| manners(&mut random)).collect();
        let first: Vec<_> = first.into_iter().map(|manners| (self.session(&mut random), manners)).collect();
        try_join_all(first.into_iter().map(|(session, manners)| self.send_alone(order, session, manners))).await?;
        // Nobody retries such an order before every lease has expired. A retry would take a stuck operation over.
        if self.gateways.len() > 1 && random.percent(20) {
            return Ok(());
        }
        let mut session = self.session(&mut random);
        self.retry_until_settled(order, &mut session, &mut random).await?;
        if !self.journal.is_settled(order.number) {
            self.journal.note_patience_lost();
        }
        for _ in 0..if random.percent(30) { random.of(1..3) } else { 0 } {
            sleep(random.millis(100)).await;
            let manners = manners(&mut random);
            self.send(order, Payload::Own, (&mut session, manners)).await?;
        }
        if order.is_probed && self.journal.is_settled(order.number) {
            self.probe(order, &mut session, &mut random).await?;
        }
        Ok(())
    }

    /// Sends a late copy of one of these orders, which have been sent before. A server may have forgotten it meanwhile.
    pub(crate) async fn copy_one(&self, orders: &[TransferOrder]) -> io::Result<()> {
        let number = u32::try_from(orders.len()).unwrap_or(u32::MAX);
        let mut random = SplitMix::new(self.seed, topic::LATE_COPY, number.into());
        let order = &orders[random.of(0..number) as usize];
        if random.percent(50) && !order.is_probed {
            let manners = manners(&mut random);
            self.send_alone(order, self.session(&mut random), manners).await?;
        }
        Ok(())
    }

    /// Sends one copy when every lease has expired, and notes whether the order still runs.
    pub(crate) async fn ask_once(&self, order: &TransferOrder) -> io::Result<()> {
        let mut random = SplitMix::new(self.seed, topic::LAST_COPY, order.number.into());
        let asked = self.exchange(order, Payload::Own, (&mut self.session(&mut random), Manners::Waits)).await;
        match asked {
            Ok(answer) => self.journal.note_last(order, answer),
            Err(error) => self.journal.note_silence(order, Payload::Own, &error),
        }
    }

    /// Asks again, long after the run, when nobody but the ledger remembers.
    pub(crate) async fn ask_again(&self, order: &TransferOrder) -> io::Result<()> {
        let mut random = SplitMix::new(!self.seed, topic::CLIENT, order.number.into());
        let mut session = self.session(&mut random);
        let begun = Instant::now();
        while !self.send(order, Payload::Own, (&mut session, Manners::Waits)).await? && begun.elapsed() < PATIENCE {
            sleep(random.millis(200)).await;
        }
        if order.is_probed {
            self.probe(order, &mut session, &mut random).await?;
        }
        Ok(())
    }

    async fn retry_until_settled(
        &self,
        order: &TransferOrder,
        session: &mut HttpSession,
        random: &mut SplitMix,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut longest = 20;
        while !self.journal.is_settled(order.number) && begun.elapsed() < PATIENCE {
            sleep(random.millis(longest)).await;
            longest = (longest * 2).min(1000);
            let manners = manners(random);
            self.send(order, Payload::Own, (session, manners)).await?;
        }
        Ok(())
    }

    /// Sends another payload under the same key, until there is a definite answer.
    async fn probe(&self, order: &TransferOrder, session: &mut HttpSession, random: &mut SplitMix) -> io::Result<()> {
        for _ in 0..20 {
            if self.send(order, Payload::Other, (session, Manners::Waits)).await? {
                break;
            }
            sleep(random.millis(500)).await;
        }
        Ok(())
    }

    /// A connection to one of the gateways.
    fn session(&self, random: &mut SplitMix) -> HttpSession {
        let number = match u32::try_from(self.gateways.len()) {
            Ok(1) | Err(_) => 0,
            Ok(gateways) => random.of(0..gateways),
        };
        HttpSession::new(self.gateways[number as usize])
    }

    async fn send_alone(&self, order: &TransferOrder, mut session: HttpSession, manners: Manners) -> io::Result<()> {
        self.send(order, Payload::Own, (&mut session, manners)).await.map(drop)
    }

    /// Sends a request and writes to the journal what came of it. Returns whether the answer is definite.
    async fn send(
        &self,
        order: &TransferOrder,
        payload: Payload,
        session: (&mut HttpSession, Manners),
    ) -> io::Result<bool> {
        match self.exchange(order, payload, session).await {
            Ok(answer) => self.journal.note(order, payload, answer),
            Err(error) => self.journal.note_silence(order, payload, &error).map(|()| false),
        }
    }

    async fn exchange(
        &self,
        order: &TransferOrder,
        payload: Payload,
        (session, manners): (&mut HttpSession, Manners),
    ) -> io::Result<WholeAnswer> {
        let body = match payload {
            Payload::Own => order.body(),
            Payload::Other => order.other_body(),
        };
        let request = format!(
            "POST /transfers HTTP/1.1\r\nHost: bank\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            order.caller,
            order.key,
            body.len()
        );
        session.send(request.as_bytes(), manners).await
    }
}

/// One copy in six does not wait for its answer.
fn manners(random: &mut SplitMix) -> Manners {
    match random.of(0..18) {
        0 => Manners::CutsRequest,
        1 | 2 => Manners::Leaves(random.millis(30)),
        _ => Manners::Waits,
    }
}
