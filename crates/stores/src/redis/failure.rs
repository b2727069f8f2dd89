//! What an error of the server or of the connection says about the step that was asked for.

use hapax_core::{Error, ErrorKind};
use redis::{ErrorKind as Cause, RedisError, ServerErrorKind};

/// A call that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was never sent.
    NotSent(RedisError),
    /// It was sent, or may have been.
    Sent(RedisError),
}

/// Each error with which a server refuses a command *before* it does anything, what that means, and the remedy.
const REFUSALS: [(&str, ErrorKind, &str); 20] = [
    ("ASK", ErrorKind::NotApplied, CLUSTER),
    ("BUSY", ErrorKind::NotApplied, "a script keeps the server busy"),
    ("CLUSTERDOWN", ErrorKind::NotApplied, CLUSTER),
    ("CROSSSLOT", ErrorKind::NotApplied, CLUSTER),
    ("DENIED", ErrorKind::Unusable, "the server is in protected mode and takes connections from its own host alone"),
    ("EXECABORT", ErrorKind::NotApplied, "the server refused a command of a transaction, and so all of it"),
    ("LOADING", ErrorKind::NotApplied, "the server is reading its data"),
    ("MASTERDOWN", ErrorKind::NotApplied, "the server is a replica that has lost its primary"),
    ("MISCONF", ErrorKind::NotApplied, "the server cannot write to its disk and refuses writes"),
    ("MOVED", ErrorKind::NotApplied, CLUSTER),
    (
        "NOAUTH",
        ErrorKind::Unusable,
        "the server asks for a password; put it in the URL, or name its file by ?password-file=",
    ),
    (
        "NOPERM",
        ErrorKind::Unusable,
        "the user lacks a right; it needs ~hx:* and +set +get +getrange +exists +pexpiretime +pexpire +time +info +multi +exec +eval +evalsha",
    ),
    ("NOREPLICAS", ErrorKind::NotApplied, "the server has fewer replicas than it wants for a write"),
    ("NOSCRIPT", ErrorKind::NotApplied, "the server has forgotten a script"),
    ("OOM", ErrorKind::Full, "the server's memory is full; give it more, or let records live for less time"),
    ("READONLY", ErrorKind::NotApplied, "the server is a replica; name the primary"),
    ("TRYAGAIN", ErrorKind::NotApplied, CLUSTER),
    ("UNKILLABLE", ErrorKind::NotApplied, "a script keeps the server busy"),
    ("WRONGPASS", ErrorKind::Unusable, "the server does not know this user and password"),
    ("WRONGTYPE", ErrorKind::Damaged, "a key of ours holds another type: something else writes under the prefix hx:"),
];

const CLUSTER: &str = "the server is part of a cluster, which is not supported yet";

/// Refusals that have no code of their own, by how they begin.
const WORDS: [(&str, ErrorKind, &str); 3] = [
    ("max number of clients reached", ErrorKind::NotApplied, "the server takes no further connection (maxclients)"),
    (
        "syntax error",
        ErrorKind::Unusable,
        "the server does not know SET with NX and GET: Redis 7.0, or any Valkey, is needed",
    ),
    (
        "unknown command",
        ErrorKind::Unusable,
        "the server lacks a command that every Redis since 7.0 has, or it was renamed",
    ),
];

impl Failure {
    /// Whether the server did not know the script, and so did not run it.
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Sent(error) if error.kind() == Cause::Server(ServerErrorKind::NoScript))
    }

    /// Whether the server answered, if only to refuse: the connection is fine then.
    pub(super) fn was_answered(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code().is_some())
    }

    /// Whether another server may take the place of this one under the same name.
    pub(super) fn was_demoted(&self) -> bool {
        matches!(self, Self::Sent(error) if matches!(error.code(), Some("READONLY" | "MASTERDOWN")))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error) => match refusal(&error) {
                Some((kind, message)) => Self::new(kind, message).caused_by(error),
                None => Self::new(ErrorKind::NotApplied, "the server cannot be reached").caused_by(error),
            },
            Failure::Sent(error) => match refusal(&error) {
                Some((kind, message)) => Self::new(kind, message).caused_by(error),
                None => Self::new(ErrorKind::Unknown, "the server did not answer").caused_by(error),
            },
        }
    }
}

/// What a refusal means; nothing for an error that leaves open what happened.
fn refusal(error: &RedisError) -> Option<(ErrorKind, &'static str)> {
    let code = error.code().unwrap_or_default();
    let by_code = REFUSALS.iter().find(|(known, _, _)| *known == code);
    let detail = error.detail().unwrap_or_default();
    let by_words = || WORDS.iter().find(|(begins, _, _)| detail.starts_with(begins));
    let refused_to_greet = (error.kind() == Cause::AuthenticationFailed)
        .then_some((ErrorKind::Unusable, "the server does not know this user and password"));
    by_code.or_else(by_words).map(|(_, kind, message)| (*kind, *message)).or(refused_to_greet)
}
