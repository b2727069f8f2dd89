//! The URL of a server: its address, credentials and certificates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, Result};
use hapax_net::tls::{self, ServerTrust};
use hapax_net::url::{Host, HostCount, Login, ServerUrl, UrlShape};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::schema::Schema;
use crate::errors::invalid;

/// The URL of a PostgreSQL server.
///
/// ```text
/// postgres://[USER[:PASSWORD]@]HOST[:5432][/DATABASE]          postgresql://… is the same
/// postgres:///DATABASE?host=/run/postgresql[&user=USER][&port=5432]    over the socket in this folder
/// ```
///
/// | parameter | |
/// |---|---|
/// | `schema=NAME` | the schema with the tables, `public` by default |
/// | `password-file=PATH` | a file with the password, instead of a password in the URL |
/// | `sslmode=MODE` | `disable`; `require` encrypts and trusts every server; `verify-ca` checks the server's certificate, and `verify-full` also the name in it. Default: `disable` on this host, otherwise `verify-full` |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
/// | `connections=N` | the largest number of connections for records, 4 by default |
/// | `host=PATH` | the folder of the server's socket, with `user=USER` and `port=N` if they are not the usual ones |
///
/// The files are read at start and again for each new connection, so a replaced file needs no restart. `Display` and
/// `Debug` hide the password.
///
/// ```
/// use hapax::stores::PostgresUrl;
///
/// let url: PostgresUrl = "postgres://payments:secret@db.example/shop?schema=hapax".parse()?;
/// assert_eq!(url.to_string(), "postgres://payments:***@db.example:5432/shop?schema=hapax");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    url: ServerUrl,
    /// The port of the socket.
    socket_port: u16,
    pub(super) schema: Schema,
    /// None without TLS.
    trust: Option<ServerTrust>,
    pub(super) connections: usize,
    /// Whether a handle brings the tables to the newest version.
    pub(super) migrates: bool,
}

/// After this long without traffic the kernel probes the peer. On Linux it closes a connection whose peer has
/// acknowledged nothing for this long. A peer that only replies late is not affected.
const MAX_SILENCE: Duration = Duration::from_secs(5);

const PORT: u16 = 5432;

const SHAPE: UrlShape = UrlShape {
    schemes: &["postgres", "postgresql"],
    port: PORT,
    what: "a PostgreSQL server",
    example: "postgres://HOST/DATABASE, postgres://user:password@host:5432/db for instance",
    hosts: HostCount::OneOrSocket,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["schema", "password-file", "sslmode", "ca", "cert", "key", "connections", "host", "user", "port"],
};

/// The parameters of a socket alone. Other URLs have them before the `?`.
const OF_SOCKETS: &[&str] = &["host", "user", "port"];

impl FromStr for PostgresUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a PostgreSQL server, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        if url.encoded_path().contains('/') {
            return Err(SHAPE.wrong());
        }
        check_socket(&url)?;
        let schema = match url.parameter("schema") {
            Some(name) => Schema::new(name).ok_or_else(|| invalid(schema_message(name)))?,
            None => Schema::default(),
        };
        let trust = trust(&url)?;
        if trust.is_none() && url.has_tls_files() {
            return Err(invalid("ca, cert and key are for TLS: write sslmode=verify-full"));
        }
        let socket_port = url.number("port", 1..=u16::MAX)?.unwrap_or(PORT);
        let connections = url.number("connections", 1..=256)?.unwrap_or(4);
        Ok(Self { url, socket_port, schema, trust, connections, migrates: true })
    }
}

fn check_socket(url: &ServerUrl) -> Result<()> {
    match (url.hosts().is_empty(), url.parameter("host")) {
        (false, _) if OF_SOCKETS.iter().any(|name| url.parameter(name).is_some()) => {
            Err(invalid("the URL has a host, or host, user and port of a socket, not both"))
        }
        (true, Some(path)) if !path.starts_with('/') => {
            Err(invalid("the parameter `host` is the folder of a socket, /run/postgresql for instance"))
        }
        (true, None) => Err(SHAPE.wrong()),
        (false, _) | (true, Some(_)) => Ok(()),
    }
}

fn trust(url: &ServerUrl) -> Result<Option<ServerTrust>> {
    match url.parameter("sslmode") {
        Some("disable") => Ok(None),
        Some("require") => Ok(Some(ServerTrust::Everybody)),
        Some("verify-ca") => Ok(Some(ServerTrust::AnyName)),
        Some("verify-full") => Ok(Some(ServerTrust::Named)),
        Some(other) => {
            Err(invalid(format!("sslmode must be disable, require, verify-ca or verify-full, not `{other}`")))
        }
        None => Ok((!is_local(url)).then_some(ServerTrust::Named)),
    }
}

/// Whether the connection does not leave this host.
fn is_local(url: &ServerUrl) -> bool {
    url.hosts().iter().all(Host::is_loopback)
}

fn schema_message(name: &str) -> String {
    format!("schema must have 1 to 63 letters, digits, underscores and hyphens, not `{name}`")
}

impl PostgresUrl {
    /// The place of the tables: host, port, database and schema, without credentials. Two URLs that name one server in
    /// two ways have two places.
    pub fn place(&self) -> StorePlace {
        const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
        let database = self.database().or(self.url.user()).unwrap_or_default();
        let database = utf8_percent_encode(database, ENCODED);
        let schema = self.schema.name();
        StorePlace::new(match (self.url.hosts(), self.url.parameter("host")) {
            ([host, ..], _) => {
                format!("postgres://{}/{database}?schema={schema}", host.to_string().to_ascii_lowercase())
            }
            ([], path) => {
                let (path, port) = (path.unwrap_or_default(), self.socket_port);
                format!("postgres:///{database}?host={path}&port={port}&schema={schema}")
            }
        })
    }

    /// The same place, for handles that create no tables and bring them to no newer version, such as those of a list.
    /// Where the schema lacks a version that this release knows, every call of such a handle fails with `Unusable`.
    #[must_use]
    pub fn without_migrations(mut self) -> Self {
        self.migrates = false;
        self
    }

    pub(super) fn uses_tls(&self) -> bool {
        self.trust.is_some()
    }

    /// Whether the connection is encrypted, and anybody may be at its other end.
    pub(super) fn trusts_everybody(&self) -> bool {
        self.trust == Some(ServerTrust::Everybody)
    }

    /// Whether the settings of TLS depend on files, which may be replaced.
    pub(super) fn has_tls_files(&self) -> bool {
        self.url.has_tls_files()
    }

    /// The settings of TLS. None without it. Reads the files.
    pub(super) fn tls(&self) -> Result<Option<ClientConfig>> {
        self.trust.map(|trust| tls::client_config(trust, &self.url.tls_files())).transpose()
    }

    /// The driver's settings of a connection. Reads the password file.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::new();
        let credentials = self.url.credentials()?;
        match self.url.hosts() {
            [host, ..] => config.host(&host.name).port(host.port),
            [] => config.host_path(self.url.parameter("host").unwrap_or_default()).port(self.socket_port),
        };
        config.application_name("hapax");
        if let Some(user) = credentials.user.as_deref().or(self.url.parameter("user")) {
            config.user(user);
        }
        if let Some(password) = credentials.password {
            config.password(password);
        }
        if let Some(database) = self.database() {
            config.dbname(database);
        }
        let mode = if self.uses_tls() { SslMode::Require } else { SslMode::Disable };
        config.ssl_mode(mode).keepalives_idle(MAX_SILENCE).keepalives_interval(MAX_SILENCE / 5);
        config.tcp_user_timeout(MAX_SILENCE);
        Ok(config)
    }

    /// The name of the database; without one, the server takes that of the user.
    fn database(&self) -> Option<&str> {
        Some(self.url.path()).filter(|name| !name.is_empty())
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::ErrorKind;

    use super::*;

    fn parse(text: &str) -> Result<PostgresUrl> {
        text.parse()
    }

    #[test]
    fn the_place_has_no_credentials_and_names_the_tables() {
        for (url, place) in [
            ("postgres://u:secret@DB.example/shop", "postgres://db.example:5432/shop?schema=public"),
            (
                "postgresql://db.example:5432/shop?schema=public&sslmode=require",
                "postgres://db.example:5432/shop?schema=public",
            ),
            ("postgres://db.example/shop?schema=hapax", "postgres://db.example:5432/shop?schema=hapax"),
            ("postgres://db.example:6000/sh%40p", "postgres://db.example:6000/sh%40p?schema=public"),
            ("postgres://shop@[::1]", "postgres://[::1]:5432/shop?schema=public"),
            ("postgres:///shop?host=/run/pg&user=u", "postgres:///shop?host=/run/pg&port=5432&schema=public"),
        ] {
            let shown = parse(url).unwrap().place().to_string();
            assert_eq!(shown, place);
            assert_eq!(parse(&shown).unwrap().place().to_string(), place, "a place is a URL of itself");
        }
    }

    #[test]
    fn tls_is_the_default_off_this_host() {
        for (url, trust) in [
            ("postgres://localhost/db", None),
            ("postgres://127.0.0.2/db", None),
            ("postgres://[::1]:6000/db", None),
            ("postgres:///db?host=/run/postgresql", None),
            ("postgresql://db.example", Some(ServerTrust::Named)),
            ("postgres://10.0.0.1/db", Some(ServerTrust::Named)),
            ("postgres://10.0.0.1/db?sslmode=disable", None),
            ("postgres://localhost/db?sslmode=verify-full", Some(ServerTrust::Named)),
        ] {
            assert_eq!(parse(url).unwrap().trust, trust, "{url}");
        }
    }

    #[test]
    fn a_url_gives_the_settings_of_a_connection() {
        let url = parse("postgres://a%40b:p%23w@db.example:6000/my%20db?schema=other&connections=3").unwrap();
        let config = url.config().unwrap();
        assert_eq!((config.get_user(), config.get_dbname()), (Some("a@b"), Some("my db")));
        assert_eq!((config.get_password(), config.get_ports()), (Some(&b"p#w"[..]), &[6000][..]));
        assert_eq!((url.schema.clone(), url.connections), (Schema::new("other").unwrap(), 3));
        assert_eq!(url.to_string(), "postgres://a%40b:***@db.example:6000/my%20db?connections=3&schema=other");
    }

    #[test]
    fn the_error_for_a_malformed_url_says_what_to_write() {
        for (text, remedy) in [
            ("postgres://:a#b@host", "%23"),
            ("postgres://u:a?b@host", "%3F"),
            ("postgres://host/db#part", "%23"),
            ("postgres://", "postgres://HOST/DATABASE"),
            ("postgres:db", "postgres://HOST/DATABASE"),
            ("postgres://host/db/more", "postgres://HOST/DATABASE"),
            ("postgres://host/db?timeout=1s", "no parameter `timeout`"),
            ("postgres://host/db?options=x", "no parameter `options`"),
            ("postgres://host/db?sslrootcert=ca.pem", "it takes schema, password-file, sslmode, ca,"),
            ("postgres://a,b/db", "only one host"),
            ("postgres://host/db?schema=a&schema=b", "only once"),
            ("postgres://host/db?schema=a.b", "not `a.b`"),
            ("postgres://host/db?sslmode=prefer", "verify-full"),
            ("postgres://host/db?cert=c.pem", "only together"),
            ("postgres://localhost/db?ca=ca.pem", "sslmode=verify-full"),
            ("postgres://host/db?connections=0", "from 1 to 256"),
            ("postgres://host/db?host=/run", "not both"),
            ("postgres:///db?host=run", "/run/postgresql"),
            ("postgres://u:secret@host/db?password-file=f", "not both"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(remedy), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
