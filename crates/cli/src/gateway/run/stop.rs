//! The last line of the log of a gateway.

use std::path::Path;

use hapax::Gate;

/// How a gateway stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatewayStop {
    pub(super) kind: StopKind,
    /// How many grants were still being given back.
    pub(super) unconfirmed_releases: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum StopKind {
    /// No request was running.
    Idle,
    /// Requests were still running at the end of the drain.
    StillRunning,
    /// A second signal ended the drain.
    AtOnce,
}

/// The last line of the log. The next process that uses the directory records the answers in its journal.
pub(super) fn log_end(stopped: GatewayStop, gate: &Gate, journal: Option<&Path>) {
    let (answers_in_journal, unconfirmed_releases) = (gate.spilled(), stopped.unconfirmed_releases);
    let journal = journal.map(|path| tracing::field::display(path.display()));
    let left = "their leases will expire and retries follow --on-lapse";
    let (is_warning, text) = match (stopped.kind, unconfirmed_releases) {
        (StopKind::Idle, 0) => (false, "stopped; no requests were running".to_owned()),
        (StopKind::Idle, 1..) => {
            let text = "stopped; no requests were running, but the store has not confirmed every release";
            (true, format!("{text}; {left}"))
        }
        (StopKind::StillRunning, _) => (true, format!("stopped with requests still running; {left}")),
        (StopKind::AtOnce, _) => (true, format!("stopped at once; if requests were running, {left}")),
    };
    if is_warning {
        tracing::warn!(answers_in_journal, unconfirmed_releases, journal, "{text}");
    } else {
        tracing::info!(answers_in_journal, unconfirmed_releases, journal, "{text}");
    }
}
