use anyhow::{Result, anyhow};
use hapax::broker::{Headers, Message};
use hapax::worker::MessageIdentity;
use hapax_torture::SplitMix;

/// The number of accounts.
pub(crate) const ACCOUNTS: u32 = 200;

/// What each account begins with: no transfer fails for want of money.
pub(crate) const BALANCE: i64 = 1_000_000_000;

/// The topics of random numbers.
const ORDER: u64 = 1;
pub(crate) const FAULTS: u64 = 2;

/// One transfer, and when its copies are sent.
#[derive(Debug)]
pub(crate) struct WorkerOrder {
    pub(crate) key: String,
    /// As the worker derives it from the key.
    pub(crate) operation: String,
    pub(crate) payer: String,
    pub(crate) payee: String,
    pub(crate) amount: i64,
    /// Each copy is sent after so many later transfers.
    pub(crate) copies: Vec<u32>,
}

impl WorkerOrder {
    pub(crate) fn draw(seed: u64, number: u32) -> Result<Self> {
        let mut random = SplitMix::new(seed, ORDER, number.into());
        let payer = random.of(0..ACCOUNTS);
        let payee = (payer + random.of(1..ACCOUNTS)) % ACCOUNTS;
        let key = format!("order-{number}");
        let copies = if random.percent(30) { random.of(1..4) } else { 0 };
        // Half of the copies follow at once.
        let mut distance = || if random.percent(50) { 0 } else { random.of(1..2000) };
        let copies = (0..copies).map(|_| distance()).collect();
        let (payer, payee, amount) = (format!("account-{payer}"), format!("account-{payee}"), random.of(1..100).into());
        Ok(Self { operation: operation(&key)?, key, payer, payee, amount, copies })
    }

    pub(crate) fn payload(&self) -> String {
        format!("{} {} {}", self.payer, self.payee, self.amount)
    }
}

fn operation(key: &str) -> Result<String> {
    let headers: Headers = [("Idempotency-Key", key.to_owned())].into_iter().collect();
    let found = MessageIdentity::new("bank")?.identify(&Message { headers, ..Message::default() });
    Ok(found.map_err(|reason| anyhow!("{}", reason.as_str()))?.call.operation().to_string())
}
