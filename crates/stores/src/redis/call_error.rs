//! Maps errors of the driver, the connection and the server to the kinds of [`Error`]: was the call applied or not?

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use hapax_core::{Error, ErrorKind};
use hapax_net::url::Host;
use redis::{ErrorKind as Cause, RedisError, ServerErrorKind};
use rustls::AlertDescription;

/// Why a call failed, and whether it had been sent.
#[derive(Debug)]
pub(super) enum RedisCallError {
    /// The error already has its kind.
    Judged(Error),
    /// The call was not sent because no connection could be opened.
    NotConnected(RedisError, Transport),
    /// The call was not sent because the connection broke.
    NotSent(RedisError),
    /// The call was sent, or may have been.
    Sent(RedisError),
    /// The slot of the key moved between the two commands of the call. Its replies are its own, and the first command
    /// may have been run.
    Split(RedisError),
    /// The write was applied, and may be lost. The error already has its kind.
    Unconfirmed(Error),
}

/// How the URL says to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Tls,
}

/// The error codes with which a server refuses a command *before* it changes anything; each with its kind and a
/// message.
const REFUSALS: [(&str, ErrorKind, &str); 20] = [
    ("ASK", ErrorKind::NotApplied, CLUSTER),
    ("BUSY", ErrorKind::NotApplied, "a long-running script blocks the server"),
    ("CLUSTERDOWN", ErrorKind::NotApplied, "the cluster is down: a slot has no master that answers"),
    ("CROSSSLOT", ErrorKind::NotApplied, CLUSTER),
    (
        "DENIED",
        ErrorKind::Unusable,
        "the server is in protected mode and accepts only connections from its own host; give it a password",
    ),
    ("EXECABORT", ErrorKind::NotApplied, "the server refused one command of a transaction, and therefore all of them"),
    ("LOADING", ErrorKind::NotApplied, "the server is still loading its data"),
    ("MASTERDOWN", ErrorKind::NotApplied, "the server is a replica that has lost its primary"),
    ("MISCONF", ErrorKind::Full, "the server cannot write to its disk and refuses writes"),
    ("MOVED", ErrorKind::NotApplied, CLUSTER),
    ("NOAUTH", ErrorKind::Unusable, PASSWORD),
    ("NOPERM", ErrorKind::Unusable, PERMISSIONS),
    ("NOREPLICAS", ErrorKind::Full, "the server has fewer replicas than it demands for a write"),
    ("NOSCRIPT", ErrorKind::NotApplied, "the server does not have the script any more"),
    ("OOM", ErrorKind::Full, "the server's memory is full; give it more memory, or shorten the retention"),
    ("READONLY", ErrorKind::NotApplied, "the server is a replica; use the URL of the primary"),
    ("TRYAGAIN", ErrorKind::NotApplied, "the slot of the keys is being moved to another node"),
    ("UNKILLABLE", ErrorKind::NotApplied, "a long-running script blocks the server"),
    ("WRONGPASS", ErrorKind::Unusable, "the server rejects this user or password"),
    (
        "WRONGTYPE",
        ErrorKind::Damaged,
        "a record's key holds another type: another program writes keys with the prefix hx:",
    ),
];

const CLUSTER: &str = "another node of the cluster has the key; the URL of a cluster is redis+cluster://HOST";

const PASSWORD: &str = "the server asks for a password; put it in the URL, or name its file by ?password-file=";

const PERMISSIONS: &str = "the user lacks a permission; it needs ~hx:* and +set +get +getrange +exists +pexpiretime \
    +pexpire +time +info +eval +evalsha, +select for any database but 0, in a cluster +cluster|slots and +asking, \
    behind sentinels +role, and with ?wait= in the URL +wait or +waitaof";

/// Refusals without a code of their own, by their first words. A script stops at a command that it may not run, and its
/// only write is its last command, so nothing was written before.
const REFUSALS_BY_TEXT: [(&str, ErrorKind, &str); 8] = [
    ("ACL failure in script", ErrorKind::Unusable, PERMISSIONS),
    ("Authentication required", ErrorKind::Unusable, PASSWORD),
    ("DB index is out of range", ErrorKind::Unusable, "the server has no database with the number in the URL"),
    ("The user executing the script", ErrorKind::Unusable, PERMISSIONS),
    (
        "This instance has cluster support disabled",
        ErrorKind::Unusable,
        "the server is no node of a cluster; the URL of a server that is alone is redis://HOST",
    ),
    (
        "max number of clients reached",
        ErrorKind::NotApplied,
        "the server has reached its limit of connections; raise its maxclients, or let other clients open fewer",
    ),
    (
        "syntax error",
        ErrorKind::Unusable,
        "the server does not know SET with NX and GET; use Redis 7.0 or later, or any Valkey",
    ),
    (
        UNKNOWN_COMMAND,
        ErrorKind::Unusable,
        "the server lacks a command that every Redis since 7.0 has, or has it renamed",
    ),
];

pub(super) const UNKNOWN_COMMAND: &str = "unknown command";

/// The answer of a node of a cluster, as far as the way of the call goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeAnswer {
    /// The call was run, or may have been, or would fail again.
    Final,
    /// Not run: this node has the slot.
    Moved { slot: u16, address: Host },
    /// Not run: this node has the key already, and the slot soon.
    Ask { address: Host },
    /// Not run: another node, or the same one, may run it later.
    Later,
}

/// The codes of a node that ran nothing and may run the same call later.
const LATER: [&str; 5] = ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN"];

impl RedisCallError {
    /// What follows for a call to a node of a cluster. `asked` is the node that answered.
    pub(super) fn node_answer(&self, asked: Option<&Host>) -> NodeAnswer {
        let error = match self {
            Self::Judged(_) | Self::Split(_) | Self::Unconfirmed(_) => return NodeAnswer::Final,
            Self::NotSent(_) => return NodeAnswer::Later,
            // A wrong password or certificate stays wrong.
            Self::NotConnected(error, transport) => {
                let (kind, _) = refusal(error).unwrap_or_else(|| connect_error(error, *transport));
                return if kind == ErrorKind::NotApplied { NodeAnswer::Later } else { NodeAnswer::Final };
            }
            Self::Sent(error) => error,
        };
        let code = error.code().unwrap_or_default();
        if LATER.contains(&code) {
            return NodeAnswer::Later;
        }
        let redirection = error.redirect_node().and_then(|(address, slot)| Some((node_address(address, asked)?, slot)));
        match (code, redirection) {
            ("MOVED", Some((address, slot))) => NodeAnswer::Moved { slot, address },
            ("ASK", Some((address, _))) => NodeAnswer::Ask { address },
            _ => NodeAnswer::Final,
        }
    }

    /// The answer of a server that is a replica now, to a call that reads.
    pub(super) fn from_replica() -> Self {
        Self::Sent(RedisError::from((Cause::Server(ServerErrorKind::ReadOnly), "the server is a replica")))
    }

    /// Whether the server lacks the script, and so did not run it.
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Sent(error) if error.kind() == Cause::Server(ServerErrorKind::NoScript))
    }

    /// Whether the call was sent and its connection broke before the reply.
    pub(super) fn is_without_reply(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code().is_none())
    }

    /// Whether the server replied, even if only to refuse: then the connection works.
    pub(super) fn is_server_reply(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code().is_some())
    }

    /// Whether the server refused the call, and would again.
    pub(super) fn is_lasting_refusal(&self) -> bool {
        let Self::Sent(error) = self else { return false };
        let kind = refusal(error).map(|(kind, _)| kind);
        error.code().is_some() && kind.is_none_or(|kind| kind == ErrorKind::Unusable)
    }

    /// Whether the server accepts no writes now. It refuses such a command before it reads the record.
    pub(super) fn is_write_refusal(&self) -> bool {
        matches!(self, Self::Sent(error) if matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS")))
    }

    /// Whether the server has fewer replicas than it demands for a write.
    pub(super) fn is_without_replicas(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code() == Some("NOREPLICAS"))
    }

    /// Whether the server is a replica. The same host name may lead to the primary.
    pub(super) fn is_from_replica(&self) -> bool {
        matches!(self, Self::Sent(error) if matches!(error.code(), Some("READONLY" | "MASTERDOWN")))
    }
}

/// Reads the address in a redirection. One without a host names a port of the node that was asked.
fn node_address(text: &str, asked: Option<&Host>) -> Option<Host> {
    // IPv6 addresses are without brackets.
    let (name, port) = text.rsplit_once(':')?;
    let name = if name.is_empty() { asked?.name.clone() } else { name.to_owned() };
    Some(Host { name, port: port.parse().ok()? })
}

impl From<RedisCallError> for Error {
    fn from(error: RedisCallError) -> Self {
        let (kind, message, error) = match error {
            RedisCallError::Judged(error) | RedisCallError::Unconfirmed(error) => return error,
            RedisCallError::Split(error) => return not_shown(error),
            RedisCallError::NotSent(error) => {
                let (kind, message) = refusal(&error).unwrap_or((ErrorKind::NotApplied, "the connection broke"));
                (kind, message, error)
            }
            RedisCallError::NotConnected(error, transport) => {
                let (kind, message) = refusal(&error).unwrap_or_else(|| connect_error(&error, transport));
                // The server repeats the command of the handshake, and that may contain a password.
                if error.detail().is_some_and(|detail| detail.starts_with(UNKNOWN_COMMAND)) {
                    return Self::new(kind, message);
                }
                (kind, message, error)
            }
            RedisCallError::Sent(error) => {
                let (kind, message) =
                    refusal(&error).unwrap_or_else(|| (ErrorKind::Unknown, ambiguous_message(&error)));
                (kind, message, error)
            }
        };
        Self::new(kind, message).caused_by(DriverError(error))
    }
}

/// The error for a record that may have been written, but that the server refuses to show.
pub(super) fn not_shown(error: RedisError) -> Error {
    let message = refusal(&error).map_or("the server does not show the record of a begin", |(_, message)| message);
    Error::new(ErrorKind::Unknown, message).caused_by(DriverError(error))
}

/// An error of the driver. The driver's error repeats its own text as its source; this wrapper skips that repetition.
#[derive(Debug)]
pub(super) struct DriverError(pub(super) RedisError);

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for DriverError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()?.source()
    }
}

/// Why no connection could be opened.
fn connect_error(error: &RedisError, transport: Transport) -> (ErrorKind, &'static str) {
    if let Some(message) = certificate_message(error) {
        return (ErrorKind::Unusable, message);
    }
    match (error.kind(), error.code()) {
        (Cause::RESP3NotSupported, _) => {
            (ErrorKind::Unusable, "the server is too old; use Redis 7.0 or later, or any Valkey")
        }
        (Cause::Parse, _) => (
            ErrorKind::Unusable,
            "the server does not speak the protocol of Redis; check the host and the port in the URL",
        ),
        (_, Some(_)) => (ErrorKind::NotApplied, "the server refuses the handshake"),
        (_, None) => (ErrorKind::NotApplied, no_handshake_message(error, transport)),
    }
}

/// What may be wrong with a server that does not reply to the handshake.
fn no_handshake_message(error: &RedisError, transport: Transport) -> &'static str {
    match transport {
        _ if error.is_connection_refusal() => UNREACHED,
        Transport::Tls if error.is_timeout() || error.is_connection_dropped() || is_not_tls(error) => {
            "the server cannot be reached by TLS; if its port does not speak TLS, write redis://"
        }
        Transport::Plain if error.is_connection_dropped() => {
            "the server closes the connection during the handshake; if its port speaks TLS, write rediss://, \
             and if it has reached its limit of connections, raise its maxclients"
        }
        Transport::Plain | Transport::Tls => UNREACHED,
    }
}

/// Whether the reply could not be read as TLS.
fn is_not_tls(error: &RedisError) -> bool {
    io_error(error).is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    // The driver's error is `Clone`, so it keeps the I/O error in an `Arc`, and that `Arc` is its source.
    error.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?.downcast_ref()
}

const UNREACHED: &str = "the server cannot be reached";

/// The message for a failed TLS handshake: one side does not trust the other's certificate.
fn certificate_message(error: &RedisError) -> Option<&'static str> {
    // tokio-rustls wraps the TLS error in an I/O error.
    let tls_error = io_error(error)?.get_ref()?.downcast_ref()?;
    if matches!(tls_error, rustls::Error::InvalidCertificate(_)) {
        return Some("the server's certificate is not trusted; name the authority that signed it with ?ca=");
    }
    let rustls::Error::AlertReceived(alert) = tls_error else { return None };
    CERTIFICATE_ALERTS
        .contains(alert)
        .then_some("the server demands a client certificate that it trusts; name one with ?cert= and ?key=")
}

/// The alerts of a server that got no client certificate, or one that it does not trust.
const CERTIFICATE_ALERTS: [AlertDescription; 4] = [
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::BadCertificate,
    AlertDescription::DecryptError,
];

/// The message for an error after which the call may or may not have been applied.
fn ambiguous_message(error: &RedisError) -> &'static str {
    match (error.kind(), error.code()) {
        // The server repeats the raw bytes of a command that it does not know; the driver cannot parse them.
        (Cause::Parse, _) => {
            "the server's reply cannot be read; it may lack SET, EVAL or EVALSHA, or have them renamed"
        }
        (_, Some(_)) => "the server replied with an error that does not tell whether the call was applied",
        (_, None) => "the server did not reply",
    }
}

/// The kind and message of a refusal; `None` for an error after which the call may have been applied.
fn refusal(error: &RedisError) -> Option<(ErrorKind, &'static str)> {
    let code = error.code().unwrap_or_default();
    let by_code = REFUSALS.iter().find(|(known, _, _)| *known == code);
    let detail = error.detail().unwrap_or_default();
    let by_text = || REFUSALS_BY_TEXT.iter().find(|(begins, _, _)| detail.starts_with(begins));
    by_code.or_else(by_text).map(|(_, kind, message)| (*kind, *message))
}

#[cfg(test)]
mod tests;
