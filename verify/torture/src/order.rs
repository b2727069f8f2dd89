//! The transfers of a run, drawn from its seed.

use hapax::{Identity, Key, OperationId, Scope};

use crate::random::SplitMix;

/// The namespace of the service's scopes and of its ledger.
pub(crate) const NAMESPACE: &str = "transfers";

/// The number of accounts.
pub(crate) const ACCOUNTS: u32 = 200;

/// What every account has at first. No transfer of a run is refused for want of money.
pub(crate) const FIRST_BALANCE: i64 = 1_000_000_000;

/// The topics of the random numbers.
pub(crate) mod topic {
    pub(crate) const ORDER: u64 = 1;
    pub(crate) const CLIENT: u64 = 2;
    pub(crate) const FAULTS: u64 = 3;
    pub(crate) const FAULT: u64 = 4;
    pub(crate) const LATE_COPY: u64 = 5;
    pub(crate) const LAST_COPY: u64 = 6;
}

/// One transfer that the client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOrder {
    /// Its number in the run.
    pub number: u32,
    /// Who asks for it. Two callers use the same key for different transfers.
    pub caller: String,
    /// Its idempotency key.
    pub key: String,
    /// The account that pays.
    pub payer: String,
    /// The account that is paid.
    pub payee: String,
    /// The amount.
    pub amount: i64,
    /// Whether the client also sends another payload under the key, after the transfer has been answered. From then on
    /// it sends no copy: if the records are lost, the other payload may be the first that they see.
    pub(crate) is_probed: bool,
}

impl TransferOrder {
    /// The order with this number.
    pub(crate) fn draw(seed: u64, number: u32) -> Self {
        let mut random = SplitMix::new(seed, topic::ORDER, number.into());
        let payer = random.of(0..ACCOUNTS);
        let payee = (payer + random.of(1..ACCOUNTS)) % ACCOUNTS;
        Self {
            number,
            caller: format!("caller-{}", number % 2 + 2 * random.of(0..4)),
            key: format!("order-{}", number / 2),
            payer: account(payer),
            payee: account(payee),
            amount: random.of(1..1000).into(),
            is_probed: random.percent(5),
        }
    }

    /// The body of its requests.
    pub(crate) fn body(&self) -> String {
        format!("{} {} {}", self.payer, self.payee, self.amount)
    }

    /// The body of a request with the same key and another payload.
    pub(crate) fn other_body(&self) -> String {
        format!("{} {} {}", self.payer, self.payee, self.amount + 1000)
    }

    /// The id of the operation, which the service derives in the same way.
    pub(crate) fn operation(&self) -> OperationId {
        let identity = Identity::plain();
        let caller = identity.tenant_of(format!("Bearer {}", self.caller).as_bytes());
        let scope = Scope::tenant(NAMESPACE, caller).expect("a namespace and a tenant");
        let key = Key::new(self.key.as_bytes()).expect("a short key");
        identity.record_key(&scope, &key).operation()
    }

    /// The only answer that is right.
    pub(crate) fn answer(&self) -> String {
        format!("{} gave {} {}: {}\n", self.payer, self.payee, self.amount, self.operation())
    }
}

/// The name of an account.
pub(crate) fn account(number: u32) -> String {
    format!("account-{number:03}")
}
