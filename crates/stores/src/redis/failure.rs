//! What an error of the server or of the connection says about the step that was asked for.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use hapax_core::{Error, ErrorKind};
use redis::{ErrorKind as Cause, RedisError, ServerErrorKind};
use rustls::AlertDescription;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It is clear what that means.
    Judged(Error),
    /// It was never sent, for no connection could be made.
    NotMade(RedisError, By),
    /// It was never sent.
    NotSent(RedisError),
    /// It was sent, or may have been.
    Sent(RedisError),
}

/// How a connection was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Plain,
    Tls,
}

/// Each error with which a server refuses a command *before* it does anything, what that means, and the remedy.
const REFUSALS: [(&str, ErrorKind, &str); 20] = [
    ("ASK", ErrorKind::NotApplied, CLUSTER),
    ("BUSY", ErrorKind::NotApplied, "a script keeps the server busy"),
    ("CLUSTERDOWN", ErrorKind::NotApplied, CLUSTER),
    ("CROSSSLOT", ErrorKind::NotApplied, CLUSTER),
    (
        "DENIED",
        ErrorKind::Unusable,
        "the server is in protected mode and takes connections from its own host alone; give it a password",
    ),
    ("EXECABORT", ErrorKind::NotApplied, "the server refused a command of a transaction, and so all of it"),
    ("LOADING", ErrorKind::NotApplied, "the server is reading its data"),
    ("MASTERDOWN", ErrorKind::NotApplied, "the server is a replica that has lost its primary"),
    ("MISCONF", ErrorKind::Full, "the server cannot write to its disk and refuses writes"),
    ("MOVED", ErrorKind::NotApplied, CLUSTER),
    ("NOAUTH", ErrorKind::Unusable, PASSWORD),
    ("NOPERM", ErrorKind::Unusable, RIGHTS),
    ("NOREPLICAS", ErrorKind::Full, "the server has fewer replicas than it wants for a write"),
    ("NOSCRIPT", ErrorKind::NotApplied, "the server has forgotten a script"),
    ("OOM", ErrorKind::Full, "the server's memory is full; give it more, or let records live for less time"),
    ("READONLY", ErrorKind::NotApplied, "the server is a replica; name the primary"),
    ("TRYAGAIN", ErrorKind::NotApplied, CLUSTER),
    ("UNKILLABLE", ErrorKind::NotApplied, "a script keeps the server busy"),
    ("WRONGPASS", ErrorKind::Unusable, "the server does not know this user and password"),
    ("WRONGTYPE", ErrorKind::Damaged, "a key of ours holds another type: something else writes under the prefix hx:"),
];

const CLUSTER: &str = "the server is part of a cluster, which is not supported yet";

const PASSWORD: &str = "the server asks for a password; put it in the URL, or name its file by ?password-file=";

const RIGHTS: &str = "the user lacks a right; it needs ~hx:* and +set +get +getrange +exists +pexpiretime +pexpire +time +info +eval +evalsha, and +select for a database of another number than 0";

/// Refusals that have no code of their own, by how they begin. No script goes on after a command that it may not give, and none has
/// written before: its write is its last.
const WORDS: [(&str, ErrorKind, &str); 7] = [
    ("ACL failure in script", ErrorKind::Unusable, RIGHTS),
    ("Authentication required", ErrorKind::Unusable, PASSWORD),
    ("DB index is out of range", ErrorKind::Unusable, "the server has no database of the number that the URL names"),
    ("The user executing the script", ErrorKind::Unusable, RIGHTS),
    (
        "max number of clients reached",
        ErrorKind::NotApplied,
        "the server has as many connections as it may have; raise its maxclients, or let other clients have fewer",
    ),
    (
        "syntax error",
        ErrorKind::Unusable,
        "the server does not know SET with NX and GET: Redis 7.0, or any Valkey, is needed",
    ),
    (
        UNKNOWN_COMMAND,
        ErrorKind::Unusable,
        "the server lacks a command that every Redis since 7.0 has, or it was renamed",
    ),
];

const UNKNOWN_COMMAND: &str = "unknown command";

impl Failure {
    /// Whether the server did not know the script, and so did not run it.
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Sent(error) if error.kind() == Cause::Server(ServerErrorKind::NoScript))
    }

    /// Whether the server answered, if only to refuse: the connection is fine then.
    pub(super) fn was_answered(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code().is_some())
    }

    /// Whether the server takes no writes now, and said so before it looked at what is there.
    pub(super) fn is_shut(&self) -> bool {
        matches!(self, Self::Sent(error) if matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS")))
    }

    /// Whether another server may take the place of this one under the same name.
    pub(super) fn was_demoted(&self) -> bool {
        matches!(self, Self::Sent(error) if matches!(error.code(), Some("READONLY" | "MASTERDOWN")))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let (kind, message, error) = match failure {
            Failure::Judged(error) => return error,
            Failure::NotSent(error) => {
                let (kind, message) = refusal(&error).unwrap_or((ErrorKind::NotApplied, "the connection broke"));
                (kind, message, error)
            }
            Failure::NotMade(error, by) => {
                let (kind, message) = refusal(&error).unwrap_or_else(|| unreached(&error, by));
                // The server repeats what it was greeted with, and that may be a password.
                if error.detail().is_some_and(|detail| detail.starts_with(UNKNOWN_COMMAND)) {
                    return Self::new(kind, message);
                }
                (kind, message, error)
            }
            Failure::Sent(error) => {
                let (kind, message) = refusal(&error).unwrap_or_else(|| (ErrorKind::Unknown, open(&error)));
                (kind, message, error)
            }
        };
        Self::new(kind, message).caused_by(Said(error))
    }
}

/// An error of the driver, which gives for its cause what it says itself.
#[derive(Debug)]
pub(super) struct Said(pub(super) RedisError);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Said {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()?.source()
    }
}

/// Why there is no connection.
fn unreached(error: &RedisError, by: By) -> (ErrorKind, &'static str) {
    if let Some(distrust) = distrust(error) {
        return (ErrorKind::Unusable, distrust);
    }
    match (error.kind(), error.code()) {
        (Cause::RESP3NotSupported, _) => {
            (ErrorKind::Unusable, "the server is too old: Redis 7.0, or any Valkey, is needed")
        }
        (_, Some(_)) => (ErrorKind::NotApplied, "the server refuses to be greeted"),
        (_, None) => (ErrorKind::NotApplied, unanswered(error, by)),
    }
}

/// What may be wrong with a server that answers no greeting.
fn unanswered(error: &RedisError, by: By) -> &'static str {
    match by {
        _ if error.is_connection_refusal() => UNREACHED,
        By::Tls if error.is_timeout() || error.is_connection_dropped() || is_no_tls(error) => {
            "the server cannot be reached by TLS; if its port speaks none, write redis://"
        }
        By::Plain if error.is_connection_dropped() => {
            "the server hangs up when it is greeted; if its port speaks TLS, write rediss://, \
             and if it has as many connections as it may have, raise its maxclients"
        }
        By::Plain | By::Tls => UNREACHED,
    }
}

/// Whether what came could not be read as TLS.
fn is_no_tls(error: &RedisError) -> bool {
    io_error(error).is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?.downcast_ref()
}

const UNREACHED: &str = "the server cannot be reached";

/// Which certificate somebody does not trust.
fn distrust(error: &RedisError) -> Option<&'static str> {
    let broken = io_error(error)?.get_ref()?.downcast_ref()?;
    if matches!(broken, rustls::Error::InvalidCertificate(_)) {
        return Some("the server's certificate is not trusted; name the authority that signed it by ?ca=");
    }
    let rustls::Error::AlertReceived(alert) = broken else { return None };
    DISTRUST
        .contains(alert)
        .then_some("the server wants a certificate of ours that it trusts; name it by ?cert= and ?key=")
}

/// What a server says that has no certificate of ours, or one of an authority that it does not know.
const DISTRUST: [AlertDescription; 4] = [
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::BadCertificate,
    AlertDescription::DecryptError,
];

/// What an error is that leaves open what happened.
fn open(error: &RedisError) -> &'static str {
    match (error.kind(), error.code()) {
        // It repeats the bytes of a command that it does not know.
        (Cause::Parse, _) => {
            "the server's reply cannot be read; it may lack SET, EVAL or EVALSHA, or have them renamed"
        }
        (_, Some(_)) => "the server answered with an error that leaves open what it did",
        (_, None) => "the server did not answer",
    }
}

/// What a refusal means; nothing for an error that leaves open what happened.
fn refusal(error: &RedisError) -> Option<(ErrorKind, &'static str)> {
    let code = error.code().unwrap_or_default();
    let by_code = REFUSALS.iter().find(|(known, _, _)| *known == code);
    let detail = error.detail().unwrap_or_default();
    let by_words = || WORDS.iter().find(|(begins, _, _)| detail.starts_with(begins));
    by_code.or_else(by_words).map(|(_, kind, message)| (*kind, *message))
}

#[cfg(test)]
mod tests {
    use hapax_core::ErrorKind::{Damaged, Full, NotApplied, Unknown, Unusable};

    use super::*;

    /// What the driver makes of an error as the server sends it.
    fn error(line: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    fn kind(failure: Failure) -> ErrorKind {
        Error::from(failure).kind()
    }

    /// As servers say it; those that a server can be brought to say are also shown by one.
    const SAID: [(&str, ErrorKind); 31] = [
        ("ASK 1234 127.0.0.1:6379", NotApplied),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", NotApplied),
        ("CLUSTERDOWN The cluster is down", NotApplied),
        ("CROSSSLOT Keys in request don't hash to the same slot", NotApplied),
        ("DENIED Redis is running in protected mode because protected mode is enabled", Unusable),
        ("EXECABORT Transaction discarded because of previous errors.", NotApplied),
        ("LOADING Redis is loading the dataset in memory", NotApplied),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", NotApplied),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", Full),
        ("MOVED 1234 127.0.0.1:6379", NotApplied),
        ("NOAUTH Authentication required.", Unusable),
        ("NOPERM this user has no permissions to run the 'set' command", Unusable),
        ("NOREPLICAS Not enough good replicas to write.", Full),
        ("NOSCRIPT No matching script. Please use EVAL.", NotApplied),
        ("OOM command not allowed when used memory > 'maxmemory'.", Full),
        ("READONLY You can't write against a read only replica.", NotApplied),
        ("TRYAGAIN Multiple keys request during rehashing of slot", NotApplied),
        ("UNKILLABLE Sorry the script already executed write commands against the dataset.", NotApplied),
        ("WRONGPASS invalid username-password pair or user is disabled.", Unusable),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Damaged),
        ("ERR DB index is out of range", Unusable),
        ("ERR max number of clients reached", NotApplied),
        ("ERR syntax error", Unusable),
        ("ERR unknown command 'EVALSHA', with args beginning with:", Unusable),
        ("ERR The user executing the script can't run this command or subcommand script: 1f", Unusable),
        ("ERR ACL failure in script: User some has no permissions to run the 'get' command", Unusable),
        ("ERR Authentication required.", Unusable),
        ("ERR Error running script (call to 1f): @user_script:1: oh", Unknown),
        ("ERR something new", Unknown),
        ("BUSYKEY Target key name already exists.", Unknown),
        ("NEWCODE something new", Unknown),
    ];

    #[test]
    fn each_refusal_of_a_server_is_what_it_says() {
        for (line, expected) in SAID {
            assert_eq!(kind(Failure::Sent(error(line))), expected, "{line}");
            let failure = Failure::Sent(error(line));
            assert!(failure.was_answered(), "{line}");
            let demoted = line.starts_with("READONLY") || line.starts_with("MASTERDOWN");
            assert_eq!(failure.was_demoted(), demoted, "{line}");
            let shut = ["OOM", "MISCONF", "NOREPLICAS"].iter().any(|code| line.starts_with(code));
            assert_eq!(failure.is_shut(), shut, "{line}");
            assert_eq!(failure.is_unknown_script(), line.starts_with("NOSCRIPT"), "{line}");
        }
        let said = |code: &str| SAID.iter().any(|(line, _)| line.split(' ').next() == Some(code));
        assert!(REFUSALS.iter().all(|(code, _, _)| said(code)));
        assert!(WORDS.iter().all(|(words, _, _)| SAID.iter().any(|(line, _)| line[4..].starts_with(words))));
    }

    #[test]
    fn what_was_never_sent_was_not_applied() {
        for (line, expected) in SAID {
            // Of a connection that was not made the one thing that is not known is why.
            let expected = if expected == Unknown { NotApplied } else { expected };
            for by in [By::Plain, By::Tls] {
                assert_eq!(kind(Failure::NotMade(error(line), by)), expected, "{line}");
            }
            assert_eq!(kind(Failure::NotSent(error(line))), expected, "{line}");
        }
    }

    #[test]
    fn a_connection_that_breaks_says_nothing_of_what_was_sent() {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
        for broken in [BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof] {
            let error = || RedisError::from(io::Error::from(broken));
            assert_eq!(kind(Failure::Sent(error())), Unknown, "{broken}");
            assert!(!Failure::Sent(error()).was_answered(), "{broken}");
            assert_eq!(kind(Failure::NotSent(error())), NotApplied, "{broken}");
            assert_eq!(kind(Failure::NotMade(error(), By::Plain)), NotApplied, "{broken}");
        }
    }

    #[test]
    fn a_reply_that_cannot_be_read_leaves_it_open() {
        let parse = redis::parse_redis_value(b"-ERR unknown command 'SET', with args beginning with: '\xff'\r\n");
        let error = parse.unwrap_err();
        assert_eq!(error.kind(), Cause::Parse);
        assert!(Error::from(Failure::Sent(error.clone())).to_string().contains("renamed"));
        assert_eq!(kind(Failure::Sent(error.clone())), Unknown);
        assert!(!Failure::Sent(error).was_answered());
    }
}
