//! Maps errors of the driver, the connection and the server to the kinds of [`Error`]: was the call applied or not?

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use hapax_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a call failed, and whether it had been sent.
#[derive(Debug)]
pub(crate) enum PostgresCallError {
    /// The error already has its kind.
    Judged(Error),
    /// The call was not sent because no connection could be opened.
    NotConnected(tokio_postgres::Error),
    /// The call was sent, or may have been.
    Sent(tokio_postgres::Error),
}

impl PostgresCallError {
    /// Whether the server rolled back the statement of this call, and the connection still works.
    pub(crate) fn is_rolled_back(&self) -> bool {
        match self {
            Self::Sent(error) => error.as_db_error().is_some_and(is_rolled_back),
            Self::Judged(_) | Self::NotConnected(_) => false,
        }
    }

    /// Whether another transaction had a lock for longer than `lock_timeout`.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// Whether the server rolled back the statement for a reason that may lie in one of its rows.
    pub(crate) fn may_be_of_one_row(&self) -> bool {
        const OF_THE_SERVER: [&str; 3] = ["25", "53", "57P"];
        let Self::Sent(error) = self else { return false };
        let may_be_of_one_row = |error: &DbError| {
            is_rolled_back(error) && !OF_THE_SERVER.iter().any(|class| error.code().code().starts_with(class))
        };
        error.as_db_error().is_some_and(may_be_of_one_row)
    }

    /// Whether the server accepts no writes: it is a standby, or was made read-only. The same host name may lead to
    /// another server by now.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::Sent(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
    }
}

/// Whether the transaction of a statement was certainly rolled back. After a fatal error it may have committed: a
/// server that shuts down can end a session between the commit and the reply.
pub(crate) fn is_rolled_back(error: &DbError) -> bool {
    let code = error.code();
    error.parsed_severity() == Some(Severity::Error)
        && *code != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
        && !code.code().starts_with("08")
}

impl fmt::Display for PostgresCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Judged(error) => fmt::Display::fmt(error, f),
            Self::NotConnected(error) | Self::Sent(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl From<PostgresCallError> for Error {
    fn from(error: PostgresCallError) -> Self {
        let (kind, message, error) = match error {
            PostgresCallError::Judged(error) => return error,
            PostgresCallError::NotConnected(error) => {
                let (kind, message) = connect_error(&error);
                (kind, message, error)
            }
            PostgresCallError::Sent(error) => {
                let (kind, message) = sent_error(&error);
                (kind, message, error)
            }
        };
        Self::new(kind, message).caused_by(PostgresDriverError(error))
    }
}

/// An error that several callers get.
#[derive(Clone, Debug)]
pub(crate) struct SharedCallError(Arc<Error>);

impl From<PostgresCallError> for SharedCallError {
    fn from(error: PostgresCallError) -> Self {
        Self(Arc::new(error.into()))
    }
}

impl SharedCallError {
    /// The error for one of the callers.
    pub(crate) fn for_caller(&self) -> Error {
        let error = Error::new(self.0.kind(), self.0.to_string());
        if self.0.source().is_some() { error.caused_by(SharedCause(Arc::clone(&self.0))) } else { error }
    }
}

/// The cause of an error that several callers get.
#[derive(Debug)]
struct SharedCause(Arc<Error>);

impl fmt::Display for SharedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source().map_or(Ok(()), |cause| fmt::Display::fmt(cause, f))
    }
}

impl StdError for SharedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source().and_then(StdError::source)
    }
}

fn sent_error(error: &tokio_postgres::Error) -> (ErrorKind, &'static str) {
    match error.as_db_error() {
        Some(reply) if is_rolled_back(reply) => {
            refusal(reply.code()).unwrap_or((ErrorKind::NotApplied, "the server refused the statement"))
        }
        Some(_) => (ErrorKind::Unknown, "the server ended the connection before it confirmed the statement"),
        None => (ErrorKind::Unknown, "the server did not reply"),
    }
}

/// The kind and message of an error that rolled the statement back, or that refused the connection.
fn refusal(code: &SqlState) -> Option<(ErrorKind, &'static str)> {
    let known = [
        (SqlState::DISK_FULL, ErrorKind::Full, "the disk of the server is full"),
        (SqlState::OUT_OF_MEMORY, ErrorKind::NotApplied, "the server is out of memory"),
        (SqlState::TOO_MANY_CONNECTIONS, ErrorKind::NotApplied, TOO_MANY),
        (SqlState::CANNOT_CONNECT_NOW, ErrorKind::NotApplied, "the server is starting, recovering or shutting down"),
        (SqlState::ADMIN_SHUTDOWN, ErrorKind::NotApplied, "the server is shutting down"),
        (SqlState::READ_ONLY_SQL_TRANSACTION, ErrorKind::NotApplied, READ_ONLY),
        (SqlState::T_R_SERIALIZATION_FAILURE, ErrorKind::NotApplied, ISOLATION),
        (SqlState::T_R_DEADLOCK_DETECTED, ErrorKind::NotApplied, "the server ended a deadlock"),
        (SqlState::LOCK_NOT_AVAILABLE, ErrorKind::NotApplied, "another transaction holds the record's lock"),
        (SqlState::QUERY_CANCELED, ErrorKind::NotApplied, "the server cancelled the statement; see statement_timeout"),
        (SqlState::UNDEFINED_TABLE, ErrorKind::Unusable, NO_TABLES),
        (SqlState::UNDEFINED_COLUMN, ErrorKind::Unusable, NO_TABLES),
        (SqlState::UNDEFINED_FUNCTION, ErrorKind::Unusable, NO_TABLES),
        (SqlState::INVALID_SCHEMA_NAME, ErrorKind::Unusable, NO_TABLES),
        (SqlState::INSUFFICIENT_PRIVILEGE, ErrorKind::Unusable, PERMISSIONS),
        (SqlState::INVALID_PASSWORD, ErrorKind::Unusable, "the server rejects this user or password"),
        (SqlState::INVALID_AUTHORIZATION_SPECIFICATION, ErrorKind::Unusable, AUTHORIZATION),
        (SqlState::INVALID_CATALOG_NAME, ErrorKind::Unusable, "the server has no database with the name in the URL"),
    ];
    let found = known.into_iter().find(|(known, ..)| known == code);
    found.map(|(_, kind, message)| (kind, message))
}

const TOO_MANY: &str =
    "the server has reached its limit of connections; raise its max_connections, or let other clients open fewer";

const READ_ONLY: &str = "the server accepts no writes: it is a standby, or default_transaction_read_only is on; use \
    the URL of the primary";

const ISOLATION: &str = "another transaction wrote the record at the same time; set default_transaction_isolation to \
    'read committed' for this role, so that such statements do not fail";

/// Also the message for a server whose tables were dropped: tables that were created anew would have no records.
pub(crate) const NO_TABLES: &str = "the tables of Hapax are missing in this schema; run `hapax migrate --database URL` \
    with a role that may create them";

pub(crate) const PERMISSIONS: &str = "the role lacks a permission; it needs USAGE on the schema, SELECT on \
    hapax_migration, SELECT and UPDATE on hapax_store, and SELECT, INSERT, UPDATE and DELETE on hapax_record; for dead \
    letters the same on hapax_dead, USAGE and SELECT on its sequence, and SELECT and DELETE on hapax_attempt; for the \
    ledger see docs/ledger_rights.sql and docs/ledger_runner_rights.sql, for the outbox docs/outbox_rights.sql. If the \
    tables are missing, run `hapax migrate --database URL` with a role that may create them";

const AUTHORIZATION: &str = "the server does not let this user in; check the user and the password in the URL, and \
    pg_hba.conf on the server (it may demand TLS: sslmode=verify-full)";

/// Why no connection could be opened.
fn connect_error(error: &tokio_postgres::Error) -> (ErrorKind, &'static str) {
    if let Some(message) = certificate_message(error) {
        return (ErrorKind::Unusable, message);
    }
    if let Some(code) = error.code() {
        return refusal(code).unwrap_or((ErrorKind::NotApplied, "the server refuses the connection"));
    }
    let io_error = find_source::<io::Error>(error);
    // An incomplete message at the end of the stream: other servers' replies look like a message of enormous length.
    if io_error.is_some_and(|error| error.to_string().contains("bytes remaining")) {
        return (ErrorKind::Unusable, OTHER_PROTOCOL);
    }
    match io_error.map(io::Error::kind) {
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            (ErrorKind::NotApplied, "the server closes the connection during the handshake")
        }
        Some(_) => (ErrorKind::NotApplied, UNREACHED),
        // The driver reports a server without TLS, a missing password and an unknown reply by text only.
        None => match error.to_string() {
            text if text.contains("TLS") => {
                (ErrorKind::Unusable, "the server does not speak TLS; write sslmode=disable, or turn on its TLS")
            }
            text if text.contains("configuration") => (
                ErrorKind::Unusable,
                "the server asks for a password; put it in the URL, or name its file by \
                 ?password-file=",
            ),
            text if text.contains("parsing") || text.contains("unexpected") => (ErrorKind::Unusable, OTHER_PROTOCOL),
            text if text.contains("authentication") => {
                (ErrorKind::Unusable, "the server's authentication failed; check the user and the password in the URL")
            }
            _ => (ErrorKind::NotApplied, UNREACHED),
        },
    }
}

const OTHER_PROTOCOL: &str =
    "the server does not speak the protocol of PostgreSQL; check the host and the port in the URL";

const UNREACHED: &str = "the server cannot be reached";

/// The message for a failed TLS handshake: one side does not trust the other's certificate.
fn certificate_message(error: &tokio_postgres::Error) -> Option<&'static str> {
    // tokio-rustls wraps the TLS error in an I/O error.
    let io_error = find_source::<io::Error>(error)?;
    let tls_error = io_error.get_ref()?.downcast_ref::<rustls::Error>()?;
    if matches!(tls_error, rustls::Error::InvalidCertificate(_)) {
        return Some(
            "the server's certificate is not trusted, or is not for this host; name the authority that signed it by \
             ?ca=",
        );
    }
    matches!(tls_error, rustls::Error::AlertReceived(_)).then_some(
        "the server refuses the TLS handshake; it may demand a client certificate: name one by ?cert= and ?key=",
    )
}

/// The first source of this type.
fn find_source<T: StdError + 'static>(error: &tokio_postgres::Error) -> Option<&T> {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(found) = source.downcast_ref() {
            return Some(found);
        }
        next = source.source();
    }
    None
}

/// An error of the driver. A reply of the server is shown without its detail and its position, which may contain a key.
#[derive(Debug)]
pub(crate) struct PostgresDriverError(pub(crate) tokio_postgres::Error);

impl fmt::Display for PostgresDriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_db_error() {
            Some(reply) => write!(f, "{} ({})", reply.message(), reply.code().code()),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl StdError for PostgresDriverError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        if self.0.as_db_error().is_some() { None } else { self.0.source() }
    }
}
