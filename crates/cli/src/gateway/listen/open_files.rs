use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files for the store, the journal, the logs and the admin listener.
const OTHERS: u64 = 128;

/// Raises the limit of open files to the number that this many connections need: one file for the client and one for
/// the API each. If the system allows less, it takes that and logs a warning with the remedy.
pub(crate) fn raise_limit(connections: usize) {
    let needed = u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if is_enough(current) {
        return;
    }
    // Only a privileged process may exceed the maximum.
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum });
    if raised.is_err() || !is_enough(Some(allowed)) {
        tracing::warn!(
            needed,
            limit = if raised.is_ok() { Some(allowed) } else { current },
            "too few files may be open for {connections} connections; raise the limit \
             (ulimit -Hn, or LimitNOFILE= of the service)"
        );
    }
}
