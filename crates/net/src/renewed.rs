//! Credentials that end. They are renewed in the background before that.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_core::runtime::{BoxFuture, Runtime, timeout};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How long before their end credentials are renewed.
const EARLY: Duration = Duration::from_secs(300);

/// The pause between two searches for credentials while the present ones may hold.
const PAUSE: Duration = Duration::from_secs(10);

/// How long the search for credentials may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Searches for credentials.
pub(crate) trait FindCredentials: Send + Sync + 'static {
    /// The credentials.
    type Found: Clone + Send + 'static;
    /// Why there are none.
    type Failure: Send + Sync + 'static;

    /// Searches once.
    fn find(&self) -> BoxFuture<'_, Result<Self::Found, Self::Failure>>;

    /// The failure of a search that has taken this long.
    fn late(limit: Duration) -> Self::Failure;

    /// The failure of a search that has ended without a result: it has panicked.
    fn broken() -> Self::Failure;

    /// When credentials end. None: never.
    fn end(found: &Self::Found) -> Option<SystemTime>;

    /// Whether two are the same.
    fn is_same(one: &Self::Found, other: &Self::Found) -> bool;
}

/// Credentials that are searched for when they are needed, and renewed five minutes before they end. If that fails, the
/// present ones are used to their end.
pub(crate) struct RenewedCredentials<F: FindCredentials> {
    places: F,
    pub(crate) state: Mutex<RenewedState<F>>,
    /// Told at the end of each search.
    pub(crate) has_ended: Notify,
    runtime: Arc<dyn Runtime>,
}

pub(crate) struct RenewedState<F: FindCredentials> {
    pub(crate) kept: Option<KeptCredentials<F>>,
    /// Why the last search has found none. None if it has found some.
    failure: Option<Arc<F::Failure>>,
    is_searching: bool,
    /// When the last search ended, on the boot-time clock.
    ended: Duration,
    /// When the service last refused credentials and others were searched for because of that.
    refused: Option<Duration>,
}

/// The result of a search.
pub(crate) struct KeptCredentials<F: FindCredentials> {
    pub(crate) credentials: F::Found,
    /// When, on the boot-time clock.
    found: Duration,
    /// Whether the service does not take them any more.
    is_refused: bool,
}

impl<F: FindCredentials> RenewedCredentials<F> {
    /// Nothing is searched for yet.
    pub(crate) fn new(places: F, runtime: Arc<dyn Runtime>) -> Self {
        let state =
            RenewedState { kept: None, failure: None, is_searching: false, ended: Duration::ZERO, refused: None };
        Self { places, state: Mutex::new(state), has_ended: Notify::new(), runtime }
    }

    /// The credentials for a request of now. It waits only if there are none that may hold.
    ///
    /// # Cancel safety
    /// Safe to drop. The search goes on.
    pub(crate) async fn current(self: &Arc<Self>) -> Result<F::Found, Arc<F::Failure>> {
        let mut has_waited = false;
        loop {
            // Before the look: an end in between is noticed.
            let ended = self.has_ended.notified();
            if let Some(found) = self.look(has_waited) {
                return found;
            }
            has_waited = true;
            ended.await;
        }
    }

    /// Notes that the service does not take these credentials. Returns whether others are searched for, which is done
    /// once in a while.
    pub(crate) fn refused(&self, credentials: &F::Found) -> bool {
        let mut state = self.state.lock();
        let now = self.runtime.boottime_now();
        let has_searched = state.refused.is_some_and(|refused| now.saturating_sub(refused) < PAUSE);
        let RenewedState { kept, refused, .. } = &mut *state;
        match kept {
            // Another call has noted it, or others were found meanwhile.
            Some(known) if known.is_refused || !F::is_same(&known.credentials, credentials) => true,
            Some(known) if !has_searched => {
                (known.is_refused, *refused) = (true, Some(now));
                true
            }
            Some(_) | None => false,
        }
    }

    /// The credentials, if nothing has to be waited for. Starts a search if it is time.
    fn look(self: &Arc<Self>, has_waited: bool) -> Option<Result<F::Found, Arc<F::Failure>>> {
        let (mut state, now) = (self.state.lock(), self.runtime.boottime_now());
        let found = state.kept.as_ref().filter(|kept| kept.holds(now, &*self.runtime));
        let found = found.map(|kept| (kept.credentials.clone(), kept.is_long(&*self.runtime)));
        if let Some((credentials, true)) = found {
            return Some(Ok(credentials));
        }
        // A search that has failed meanwhile has failed for this caller, too.
        if let Some(failure) = state.failure.as_ref().filter(|_| has_waited && found.is_none()) {
            return Some(Err(Arc::clone(failure)));
        }
        let has_just_ended = found.is_some() && now.saturating_sub(state.ended) < PAUSE;
        if !state.is_searching && !has_just_ended {
            state.is_searching = true;
            let renewed = Arc::clone(self);
            self.runtime.spawn(Box::pin(async move { renewed.search().await }));
        }
        found.map(|(credentials, _)| Ok(credentials))
    }

    async fn search(&self) {
        let mut running = RunningSearch { renewed: self, has_ended: false };
        let found = timeout(&*self.runtime, PATIENCE, self.places.find()).await;
        let found = found.unwrap_or_else(|| Err(F::late(PATIENCE)));
        let (mut state, now) = (self.state.lock(), self.runtime.boottime_now());
        (state.is_searching, state.ended, running.has_ended) = (false, now, true);
        match found {
            Ok(credentials) => {
                state.kept = Some(KeptCredentials { credentials, found: now, is_refused: false });
                state.failure = None;
            }
            Err(error) => state.failure = Some(Arc::new(error)),
        }
        drop(state);
        self.has_ended.notify_waiters();
    }
}

/// A search. If it panics, the next caller searches again.
struct RunningSearch<'a, F: FindCredentials> {
    renewed: &'a RenewedCredentials<F>,
    has_ended: bool,
}

impl<F: FindCredentials> Drop for RunningSearch<'_, F> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let RenewedCredentials { state, has_ended, runtime, .. } = self.renewed;
        {
            let mut state = state.lock();
            (state.is_searching, state.ended) = (false, runtime.boottime_now());
            state.failure = Some(Arc::new(F::broken()));
        }
        has_ended.notify_waiters();
    }
}

impl<F: FindCredentials> KeptCredentials<F> {
    /// Whether no others are searched for.
    fn is_long(&self, runtime: &dyn Runtime) -> bool {
        self.left(runtime).is_none_or(|left| left > EARLY)
    }

    /// Whether the service may take them. New ones also if they have ended by the clock of this host, which may be
    /// wrong.
    fn holds(&self, now: Duration, runtime: &dyn Runtime) -> bool {
        let is_new = now.saturating_sub(self.found) < PAUSE;
        !self.is_refused && (is_new || self.left(runtime).is_none_or(|left| !left.is_zero()))
    }

    /// How long they still hold. None: for ever.
    fn left(&self, runtime: &dyn Runtime) -> Option<Duration> {
        let now = UNIX_EPOCH + Duration::from_micros(runtime.wall_now().0);
        F::end(&self.credentials).map(|end| end.duration_since(now).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hapax_core::runtime::Tokio;

    use super::*;

    /// Panics at the first search, and finds the number of the search later.
    #[derive(Default)]
    struct Panicking(AtomicUsize);

    impl FindCredentials for Panicking {
        type Found = usize;
        type Failure = &'static str;

        fn find(&self) -> BoxFuture<'_, Result<usize, &'static str>> {
            Box::pin(async {
                let number = self.0.fetch_add(1, Ordering::Relaxed);
                assert!(number > 0, "the first search of this test panics");
                Ok(number)
            })
        }

        fn late(_limit: Duration) -> &'static str {
            "late"
        }

        fn broken() -> &'static str {
            "broken"
        }

        fn end(_found: &usize) -> Option<SystemTime> {
            None
        }

        fn is_same(one: &usize, other: &usize) -> bool {
            one == other
        }
    }

    #[tokio::test]
    async fn a_search_that_panics_has_failed_and_the_next_caller_searches_again() {
        let renewed = Arc::new(RenewedCredentials::new(Panicking::default(), Arc::new(Tokio::current())));
        assert_eq!(renewed.current().await, Err(Arc::new("broken")));
        assert_eq!(renewed.current().await, Ok(1));
    }
}
