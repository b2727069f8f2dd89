//! Every value that can be set, once: its flag, its variable and its place in the file are one row of this table.
//!
//! To add one: a row here, and a field where `config.rs` or `config/rules.rs` reads it by the name of its flag.

/// A value that can be set by flag, environment and file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Its flag, without the dashes: the name by which it is read.
    pub(crate) flag: &'static str,
    /// Its environment variable: `HAPAX_` and the flag in upper snake case.
    pub(crate) variable: &'static str,
    /// Its table in the file.
    pub(crate) table: &'static str,
    /// Its name in that table.
    pub(crate) key: &'static str,
    /// What kind of value the help shows.
    pub(crate) value: &'static str,
    /// The value when nobody gives one.
    pub(crate) default: Option<&'static str>,
    /// Whether it is a list.
    pub(crate) many: bool,
    /// What it does; `{schemes}` stands for the stores of this build.
    pub(crate) help: &'static str,
}

/// The tables of the file that hold settings, and what they are called where flags are listed.
pub(crate) const TABLES: [(&str, &str); 4] = [
    ("gateway", "[gateway] of the file"),
    ("store", "[store] of the file"),
    (PER_ROUTE, "[policy] of the file; each [[route]] may have its own, and says `protect` for `key`"),
    ("secrets", "[secrets] of the file"),
];

/// The table whose settings each route may have of its own.
pub(crate) const PER_ROUTE: &str = "policy";

impl Setting {
    /// The setting of this flag.
    pub(crate) fn of(flag: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.flag == flag)
    }
}

#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        flag: "upstream", variable: "HAPAX_UPSTREAM", table: "gateway", key: "upstream",
        value: "URL", default: None, many: false,
        help: "The API to stand in front of: https://HOST:PORT (in HTTP/2 where the API offers it, else in HTTP/1.1), http://HOST:PORT (HTTP/1.1), or h2c://HOST:PORT (HTTP/2 without TLS, for an API that is known to speak it)",
    },
    Setting {
        flag: "upstream-ca", variable: "HAPAX_UPSTREAM_CA", table: "gateway", key: "upstream-ca",
        value: "FILE", default: None, many: false,
        help: "The authorities that may have signed the certificate of an https:// API, in PEM; by default those of the system",
    },
    Setting {
        flag: "tls-cert", variable: "HAPAX_TLS_CERT", table: "gateway", key: "tls-cert",
        value: "FILE", default: None, many: false,
        help: "The certificate with which clients are served by TLS, with its chain, in PEM; HTTP/2 is spoken then, too",
    },
    Setting {
        flag: "tls-key", variable: "HAPAX_TLS_KEY", table: "gateway", key: "tls-key",
        value: "FILE", default: None, many: false,
        help: "Its private key, in PEM",
    },
    Setting {
        flag: "listen", variable: "HAPAX_LISTEN", table: "gateway", key: "listen",
        value: "ADDRESS", default: Some("127.0.0.1:8080"), many: false,
        help: "Where clients connect",
    },
    Setting {
        flag: "admin", variable: "HAPAX_ADMIN", table: "gateway", key: "admin",
        value: "ADDRESS", default: Some("127.0.0.1:8081"), many: false,
        help: "Where /healthz, /readyz and /metrics are answered; off loopback /metrics only with --admin-token-file",
    },
    Setting {
        flag: "admin-token-file", variable: "HAPAX_ADMIN_TOKEN_FILE", table: "gateway", key: "admin-token-file",
        value: "FILE", default: None, many: false,
        help: "A file with the token, 16 or more visible characters, that everything but /healthz and /readyz demands there: `Authorization: Bearer TOKEN`",
    },
    Setting {
        flag: "upstream-timeout", variable: "HAPAX_UPSTREAM_TIMEOUT", table: "gateway", key: "upstream-timeout",
        value: "DURATION", default: Some("60s"), many: false,
        help: "How long the API may take to answer; after that the outcome is unknown",
    },
    Setting {
        flag: "request-body-timeout", variable: "HAPAX_REQUEST_BODY_TIMEOUT", table: "gateway", key: "request-body-timeout",
        value: "DURATION", default: Some("60s"), many: false,
        help: "How long the whole body of a protected request may take to arrive; after that it is 408, and nothing is recorded",
    },
    Setting {
        flag: "tenant", variable: "HAPAX_TENANT", table: "gateway", key: "tenant",
        value: "SOURCE", default: Some("authorization"), many: false,
        help: "Whose key a request carries: `authorization` (a hash of its Authorization field; a renewed credential is a new caller), `header:NAME` (set by a proxy that you trust), or `none` (all callers share keys and answers)",
    },
    Setting {
        flag: "max-in-flight", variable: "HAPAX_MAX_IN_FLIGHT", table: "gateway", key: "max-in-flight",
        value: "N", default: Some("4096"), many: false,
        help: "How many protected requests may run at once; further ones get 503",
    },
    Setting {
        flag: "max-in-flight-per-tenant", variable: "HAPAX_MAX_IN_FLIGHT_PER_TENANT", table: "gateway", key: "max-in-flight-per-tenant",
        value: "N", default: Some("1024"), many: false,
        help: "How many of them may be one caller's; at most max-in-flight",
    },
    Setting {
        flag: "store", variable: "HAPAX_STORE", table: "store", key: "url",
        value: "URL", default: Some("sqlite://hapax.db"), many: false,
        help: "Where records are kept: {schemes}. memory: has them until their retention is over, about 500 bytes and the answer each, or until the process ends; from 1 GiB on new keys get 503",
    },
    Setting {
        flag: "store-timeout", variable: "HAPAX_STORE_TIMEOUT", table: "store", key: "timeout",
        value: "DURATION", default: Some("1s"), many: false,
        help: "How long one call to the store may take before its outcome counts as unknown",
    },
    Setting {
        flag: "namespace", variable: "HAPAX_NAMESPACE", table: "store", key: "namespace",
        value: "NAME", default: Some("default"), many: false,
        help: "The service whose keys these are; services that share a store have one each",
    },
    Setting {
        flag: "data-dir", variable: "HAPAX_DATA_DIR", table: "store", key: "data-dir",
        value: "DIRECTORY", default: None, many: false,
        help: "Where answers are kept that the store does not take; by default beside a SQLite file, FILE.spill, nowhere for memory:, and for every other store ${XDG_STATE_HOME:-~/.local/state}/hapax/NAMESPACE. One directory a store",
    },
    Setting {
        flag: "secrets", variable: "HAPAX_SECRETS", table: "secrets", key: "file",
        value: "FILE", default: None, many: false,
        help: "A file of 32 bytes, or of 64 hexadecimal digits, under which ids are derived, so that nothing can be guessed from what is stored. For a namespace that was never used; it cannot be changed or left out again",
    },
    Setting {
        flag: "key", variable: "HAPAX_KEY", table: "policy", key: "key",
        value: "RULE", default: Some("required"), many: false,
        help: "Whether a POST or PATCH must have a key: `required` (400 without one) or `optional` (without one it is passed on unprotected)",
    },
    Setting {
        flag: "key-from", variable: "HAPAX_KEY_FROM", table: "policy", key: "key-from",
        value: "PLACE", default: Some("header:Idempotency-Key"), many: false,
        help: "Where the key is: `header:NAME`, or `json:/POINTER` for a member of the body",
    },
    Setting {
        flag: "key-grammar", variable: "HAPAX_KEY_GRAMMAR", table: "policy", key: "key-grammar",
        value: "GRAMMAR", default: Some("lenient"), many: false,
        help: "How a key may be written in its header: `lenient` (a quoted string or the bare value; both are the same key) or `strict` (the quoted string alone, as the draft wants it)",
    },
    Setting {
        flag: "lease", variable: "HAPAX_LEASE", table: "policy", key: "lease",
        value: "DURATION", default: Some("30s"), many: false,
        help: "How long a request is believed to run without a sign of life; at least 1s",
    },
    Setting {
        flag: "retention", variable: "HAPAX_RETENTION", table: "policy", key: "retention",
        value: "DURATION", default: Some("24h"), many: false,
        help: "How long an answer is given again",
    },
    Setting {
        flag: "unknown-retention", variable: "HAPAX_UNKNOWN_RETENTION", table: "policy", key: "unknown-retention",
        value: "DURATION", default: Some("30days"), many: false,
        help: "How long a request is remembered of which nobody knows whether it had its effect",
    },
    Setting {
        flag: "max-execution", variable: "HAPAX_MAX_EXECUTION", table: "policy", key: "max-execution",
        value: "DURATION", default: Some("15min"), many: false,
        help: "How long a request may run; after that its lease is no longer renewed",
    },
    Setting {
        flag: "wait", variable: "HAPAX_WAIT", table: "policy", key: "wait",
        value: "DURATION", default: Some("0s"), many: false,
        help: "How long a copy waits for the answer of the first while that runs; 0s tells it to come back at once",
    },
    Setting {
        flag: "on-lapse", variable: "HAPAX_ON_LAPSE", table: "policy", key: "on-lapse",
        value: "POLICY", default: Some("hold"), many: false,
        help: "What a copy gets after an attempt ended without a word, when it may have had its effect: `hold` (409 outcome-unknown until somebody finds out: never a second effect) or `retry` (run it again: only where a second effect does no harm)",
    },
    Setting {
        flag: "when-store-down", variable: "HAPAX_WHEN_STORE_DOWN", table: "policy", key: "when-store-down",
        value: "POLICY", default: Some("reject"), many: false,
        help: "What happens while records cannot be reached: `reject` (503, nothing runs) or `pass` (each copy runs, without a record: only where a second effect does no harm)",
    },
    Setting {
        flag: "max-request-body", variable: "HAPAX_MAX_REQUEST_BODY", table: "policy", key: "max-request-body",
        value: "BYTES", default: Some("1MiB"), many: false,
        help: "The longest body of a protected request; a longer one is answered with 413",
    },
    Setting {
        flag: "max-stored-body", variable: "HAPAX_MAX_STORED_BODY", table: "policy", key: "max-stored-body",
        value: "BYTES", default: Some("1MiB"), many: false,
        help: "The longest body of an answer that is kept; a longer one is passed on, and its copies get 409",
    },
    Setting {
        flag: "store-header", variable: "HAPAX_STORE_HEADER", table: "policy", key: "store-header",
        value: "NAME", default: None, many: true,
        help: "A header to keep with an answer beside the usual ones; may be given many times",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_its_twin_in_the_environment_and_one_of_its_own_in_the_file() {
        for setting in SETTINGS {
            let variable = format!("HAPAX_{}", setting.flag.to_uppercase().replace('-', "_"));
            assert_eq!(setting.variable, variable);
            assert!(TABLES.iter().any(|(table, _)| *table == setting.table), "{}", setting.flag);
            let twins = |other: &&Setting| (other.table, other.key) == (setting.table, setting.key);
            assert_eq!(SETTINGS.iter().filter(twins).count(), 1, "{}", setting.flag);
            // So that whoever knows the one knows the other.
            assert!(setting.flag.ends_with(setting.key) || setting.flag == setting.table, "{}", setting.flag);
        }
    }
}
