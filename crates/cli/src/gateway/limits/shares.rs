//! The share of each bounded resource that one address may hold.
//!
//! Every resource has a total, and one address gets a part of it (`--address-share`), so that a single client cannot
//! occupy all of it. One whole body is always admitted: a total or a share that is smaller than one body still works.

use std::collections::hash_map::{HashMap, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gateway::limits::{BODY_MEMORY, Limits};
use crate::serve::client_address::ClientAddress;

/// The shortest time between two warnings about one resource.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How long a stream waits for room before it looks again by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A resource with a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Connections,
    /// Bytes of the bodies of protected requests.
    Bodies,
    /// Protected requests that are in progress. The gate refuses those over the share; here they are only counted.
    Attempts,
    /// Bytes of answers that wait for their clients.
    Answers,
}

impl Resource {
    const COUNT: usize = 4;

    fn index(self) -> usize {
        match self {
            Self::Connections => 0,
            Self::Bodies => 1,
            Self::Attempts => 2,
            Self::Answers => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Bodies => "memory for request bodies",
            Self::Attempts => "running requests",
            Self::Answers => "memory for answers that clients have not read",
        }
    }
}

/// Returns the part of a total that one address may hold: at least 1.
pub(crate) fn share_of(total: usize, percent: usize) -> usize {
    let part = total / 100 * percent + total % 100 * percent / 100;
    part.max(1)
}

/// All resources, and the accounts of the addresses that hold some of them.
#[derive(Debug)]
pub(crate) struct Shares {
    pools: [Pool; Resource::COUNT],
    accounts: Mutex<HashMap<ClientAddress, Weak<AddressAccount>>>,
    /// Numbers the addresses. Two addresses with the same number share one limit of running requests.
    numbers: RandomState,
    started_at: Instant,
}

#[derive(Debug)]
struct Pool {
    total: usize,
    share: usize,
    used: AtomicUsize,
    room: Notify,
    /// The second of the last warning, counted from the start; 0 before the first one.
    warned_at: AtomicU64,
}

impl Pool {
    fn new(total: usize, percent: usize) -> Self {
        let share = share_of(total, percent);
        Self { total, share, used: AtomicUsize::new(0), room: Notify::new(), warned_at: AtomicU64::new(0) }
    }
}

impl Shares {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let totals = [limits.connections, BODY_MEMORY, limits.in_flight, limits.answer_memory];
        Arc::new(Self {
            pools: totals.map(|total| Pool::new(total, limits.address_share)),
            accounts: Mutex::default(),
            numbers: RandomState::new(),
            started_at: Instant::now(),
        })
    }

    /// Returns the account of this address. It exists while somebody holds it.
    pub(crate) fn account(self: &Arc<Self>, ip: IpAddr) -> Arc<AddressAccount> {
        let address = ClientAddress::from(ip);
        let mut accounts = self.accounts.lock();
        if let Some(account) = accounts.get(&address).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(AddressAccount {
            address,
            number: self.numbers.hash_one(address),
            used: Default::default(),
            room: Notify::new(),
            shares: Arc::clone(self),
        });
        accounts.insert(address, Arc::downgrade(&account));
        account
    }

    fn warn(&self, resource: Resource, address: ClientAddress) {
        let pool = &self.pools[resource.index()];
        let now = self.started_at.elapsed().as_secs() + WARN_EVERY.as_secs();
        let last = pool.warned_at.load(Ordering::Relaxed);
        let is_due = now >= last + WARN_EVERY.as_secs()
            && pool.warned_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            tracing::warn!(
                address = %address.0,
                resource = resource.name(),
                share = pool.share,
                total = pool.total,
                "one address holds its whole share of a resource and gets no more of it; if it is a proxy or load \
                 balancer, name it with --trusted-proxy CIDR, so that each client behind it has a share of its own \
                 (--address-share 100 turns shares off)"
            );
        }
    }
}

/// The part of each resource that one address holds.
#[derive(Debug)]
pub(crate) struct AddressAccount {
    address: ClientAddress,
    number: u64,
    used: [AtomicUsize; Resource::COUNT],
    room: Notify,
    shares: Arc<Shares>,
}

impl AddressAccount {
    /// A number for the address. It differs from process to process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Takes this much of a resource. None if the address or all addresses together would hold too much.
    pub(crate) fn take(self: &Arc<Self>, resource: Resource, amount: usize) -> Option<Taken> {
        let mut taken = self.empty(resource);
        taken.grow(amount).then_some(taken)
    }

    /// Takes this much of a resource, even if it is too much.
    pub(crate) fn take_anyway(self: &Arc<Self>, resource: Resource, amount: usize) -> Taken {
        let mut taken = self.empty(resource);
        taken.grow_anyway(amount);
        taken
    }

    /// Takes nothing yet.
    pub(crate) fn empty(self: &Arc<Self>, resource: Resource) -> Taken {
        Taken { account: Arc::clone(self), resource, amount: 0 }
    }

    /// Whether there is room for more of this resource.
    pub(crate) fn has_room(&self, resource: Resource) -> bool {
        let pool = self.pool(resource);
        self.has_share_left(resource) && pool.used.load(Ordering::Acquire) < pool.total
    }

    fn has_share_left(&self, resource: Resource) -> bool {
        self.used(resource).load(Ordering::Acquire) < self.pool(resource).share
    }

    /// Waits until there is room for more of this resource.
    pub(crate) async fn wait_for_room(self: Arc<Self>, resource: Resource) {
        while !self.has_room(resource) {
            let room = if self.has_share_left(resource) { &self.pool(resource).room } else { &self.room };
            // A release wakes one waiter, which may find that it lacks room elsewhere. The others look again in time.
            let _ = tokio::time::timeout(LOOK_AGAIN, room.notified()).await;
        }
    }

    /// Logs a warning if the address holds its whole share, unless one was logged within the last minute.
    pub(crate) fn warn_if_full(&self, resource: Resource) {
        let pool = self.pool(resource);
        if pool.share < pool.total && !self.has_share_left(resource) {
            self.shares.warn(resource, self.address);
        }
    }

    fn pool(&self, resource: Resource) -> &Pool {
        &self.shares.pools[resource.index()]
    }

    fn used(&self, resource: Resource) -> &AtomicUsize {
        &self.used[resource.index()]
    }
}

impl Drop for AddressAccount {
    fn drop(&mut self) {
        let mut accounts = self.shares.accounts.lock();
        // A new account of the address may have taken its place already.
        if accounts.get(&self.address).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.address);
        }
    }
}

/// A part of a resource, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    account: Arc<AddressAccount>,
    resource: Resource,
    amount: usize,
}

impl Taken {
    /// Takes more of the resource. Returns whether there was room; if not, nothing has changed. There always is if
    /// nobody else holds some.
    #[must_use]
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let (pool, used) = (self.account.pool(self.resource), self.account.used(self.resource));
        let is_within = |before: usize, limit: usize| before <= self.amount || before.saturating_add(more) <= limit;
        if !is_within(used.fetch_add(more, Ordering::AcqRel), pool.share) {
            used.fetch_sub(more, Ordering::AcqRel);
            if pool.share < pool.total {
                self.account.shares.warn(self.resource, self.account.address);
            }
            return false;
        }
        if !is_within(pool.used.fetch_add(more, Ordering::AcqRel), pool.total) {
            used.fetch_sub(more, Ordering::AcqRel);
            pool.used.fetch_sub(more, Ordering::AcqRel);
            return false;
        }
        self.amount += more;
        true
    }

    /// Takes more of the resource, even if it is too much.
    pub(crate) fn grow_anyway(&mut self, more: usize) {
        self.account.used(self.resource).fetch_add(more, Ordering::AcqRel);
        self.account.pool(self.resource).used.fetch_add(more, Ordering::AcqRel);
        self.amount += more;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let pool = self.account.pool(self.resource);
        self.account.used(self.resource).fetch_sub(self.amount, Ordering::AcqRel);
        pool.used.fetch_sub(self.amount, Ordering::AcqRel);
        if self.resource == Resource::Answers {
            self.account.room.notify_one();
            pool.room.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    fn shares(answer_memory: usize, address_share: usize) -> Arc<Shares> {
        Shares::new(&Limits { answer_memory, address_share, ..Limits::default() })
    }

    #[test]
    fn one_address_gets_its_share_and_others_get_the_rest() {
        let shares = shares(100, 50);
        let (one, other) = (shares.account(ONE), shares.account(OTHER));
        let held = [one.take(Resource::Answers, 30), one.take(Resource::Answers, 20)];
        assert!(held.iter().all(Option::is_some) && one.take(Resource::Answers, 1).is_none());
        assert!(!one.has_room(Resource::Answers) && other.has_room(Resource::Answers));
        let rest = other.take(Resource::Answers, 50).unwrap();
        assert!(shares.account(ONE).take(Resource::Answers, 1).is_none(), "the account of an address is one");
        drop((held, rest));
        assert!(one.has_room(Resource::Answers));
    }

    #[test]
    fn one_whole_body_is_always_admitted() {
        let shares = shares(100, 50);
        let (one, other) = (shares.account(ONE), shares.account(OTHER));
        let mut large = one.take(Resource::Answers, 60).unwrap();
        assert!(large.grow(1_000), "it is the only one");
        assert!(one.take(Resource::Answers, 1).is_none() && other.take(Resource::Answers, 1).is_none());
        drop(large);
        let small = other.take(Resource::Answers, 1).unwrap();
        assert!(one.take(Resource::Answers, 101).is_none(), "it is not the only one");
        drop(small);
    }

    #[test]
    fn a_share_of_100_percent_is_no_limit() {
        let one = shares(100, 100).account(ONE);
        let held = one.take(Resource::Answers, 100);
        assert!(held.is_some() && one.take(Resource::Answers, 1).is_none());
    }

    #[test]
    fn the_addresses_of_a_64_network_have_one_account() {
        let shares = shares(100, 50);
        let account = |ip: &str| shares.account(ip.parse().unwrap());
        let first = account("2001:db8::1");
        assert!(Arc::ptr_eq(&first, &account("2001:db8::2:3")));
        assert!(!Arc::ptr_eq(&first, &account("2001:db8:0:1::1")));
        let mapped = account("::ffff:127.0.0.1");
        assert!(Arc::ptr_eq(&mapped, &account("127.0.0.1")));
    }

    #[test]
    fn an_account_that_nobody_holds_is_removed() {
        let shares = shares(100, 50);
        drop((shares.account(ONE), shares.account(ONE)));
        assert!(shares.accounts.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_until_there_is_room() {
        let one = shares(100, 50).account(ONE);
        let held = one.take_anyway(Resource::Answers, 70);
        let waiting = tokio::spawn(Arc::clone(&one).wait_for_room(Resource::Answers));
        tokio::time::sleep(LOOK_AGAIN * 3).await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap();
    }
}
