use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Beside connections: the store, the journal, logs, the admin listener.
const OTHERS: u64 = 128;

/// Sees that this process may have open what so many connections need: one to the client, one to the API. Takes what it is allowed to
/// take, and warns with the remedy if that is not enough.
pub(crate) fn provide(connections: usize) {
    let needed = u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(current) {
        return;
    }
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum });
    if raised.is_err() || !enough(Some(allowed)) {
        tracing::warn!(
            needed,
            limit = if raised.is_ok() { Some(allowed) } else { current },
            "too few files may be open for {connections} connections; raise the limit (ulimit -Hn, or LimitNOFILE= of the service)"
        );
    }
}
