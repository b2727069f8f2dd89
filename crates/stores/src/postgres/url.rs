//! The URL of a server: its address, credentials and certificates.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, ErrorKind, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use url::Url;

use super::schema::Schema;
use super::tls::{TlsFiles, TlsMode};

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
/// | `sslrootcert=PATH` | the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `sslcert=PATH`, `sslkey=PATH` | a client certificate and its key (PEM), if the server demands one |
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
/// assert_eq!(url.to_string(), "postgres://payments:***@db.example/shop");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    url: Url,
    host: Host,
    password_file: Option<String>,
    pub(super) schema: Schema,
    pub(super) tls: TlsMode,
    pub(super) tls_files: TlsFiles,
    pub(super) connections: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    /// The folder of a Unix socket.
    Folder {
        path: String,
        user: Option<String>,
        port: Option<u16>,
    },
}

/// After this long without traffic the kernel probes the peer. On Linux it closes a connection whose peer has
/// acknowledged nothing for this long. A peer that only replies late is not affected.
const MAX_SILENCE: Duration = Duration::from_secs(5);

const SHAPE: &str = "a server's URL is postgres://HOST/DATABASE, postgres://user:password@host:5432/db for instance";
const PARAMETERS: &str =
    "schema, password-file, sslmode, sslrootcert, sslcert, sslkey, connections and, for a socket, host, user and port";
const ENCODE: &str = "a server's URL has no fragment (#), and a value for each parameter; \
     in a password write #, ?, / and @ as %23, %3F, %2F and %40";
const MAX_CONNECTIONS: usize = 256;
const CONNECTIONS: usize = 4;
const PORT: u16 = 5432;

/// The parameters of a URL as they are written.
#[derive(Default)]
struct Parameters {
    values: Vec<(String, String)>,
}

impl Parameters {
    const KNOWN: [&str; 10] = [
        "schema",
        "password-file",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "connections",
        "host",
        "user",
        "port",
    ];

    fn read(url: &Url) -> Result<Self> {
        let mut this = Self::default();
        for (name, value) in url.query_pairs() {
            // The end of a password that is not encoded.
            if value.is_empty() || name.contains(['@', ':', '/']) {
                return Err(invalid(ENCODE));
            }
            if !Self::KNOWN.contains(&&*name) {
                return Err(invalid(format!("a server's URL has no parameter `{name}`; it takes {PARAMETERS}")));
            }
            if this.values.iter().any(|(known, _)| *known == name) {
                return Err(invalid(format!("a server's URL has the parameter `{name}` only once")));
            }
            this.values.push((name.into_owned(), value.into_owned()));
        }
        Ok(this)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let position = self.values.iter().position(|(known, _)| known == name)?;
        Some(self.values.swap_remove(position).1)
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a PostgreSQL server, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        // A `#` or `?` in a password that is not encoded ends the host before the `@`.
        let is_not_encoded = text.split_once(['#', '?']).is_some_and(|(_, rest)| rest.contains('@'));
        let shape = if is_not_encoded { ENCODE } else { SHAPE };
        let url = Url::parse(text).map_err(|source| invalid(shape).caused_by(source))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") || url.cannot_be_a_base() {
            return Err(invalid(SHAPE));
        }
        if url.fragment().is_some() {
            return Err(invalid(ENCODE));
        }
        let mut parameters = Parameters::read(&url)?;
        let host = read_host(&url, &mut parameters)?;
        let schema = match parameters.take("schema") {
            Some(name) => Schema::new(&name).ok_or_else(|| invalid(schema_message(&name)))?,
            None => Schema::default(),
        };
        let tls = match parameters.take("sslmode") {
            Some(mode) => TlsMode::parse(&mode)?,
            None if host.is_local() => TlsMode::Disable,
            None => TlsMode::VerifyFull,
        };
        let tls_files = TlsFiles {
            authority: parameters.take("sslrootcert"),
            identity: match (parameters.take("sslcert"), parameters.take("sslkey")) {
                (None, None) => None,
                (Some(cert), Some(key)) => Some((cert, key)),
                (Some(_), None) | (None, Some(_)) => {
                    return Err(invalid("a server's URL has sslcert and sslkey only together"));
                }
            },
        };
        if tls == TlsMode::Disable && tls_files.has_any() {
            return Err(invalid("sslrootcert, sslcert and sslkey are for TLS: write sslmode=verify-full"));
        }
        let connections = parameters.take("connections").map_or(Ok(CONNECTIONS), |count| parse_connections(&count))?;
        let password_file = parameters.take("password-file");
        if password_file.is_some() && url.password().is_some() {
            return Err(invalid("a server's URL has a password or a password-file, not both"));
        }
        let this = Self { url, host, password_file, schema, tls, tls_files, connections };
        this.database()?;
        Ok(this)
    }
}

fn schema_message(name: &str) -> String {
    format!("schema must have 1 to 63 letters, digits, underscores and hyphens, not `{name}`")
}

fn parse_connections(value: &str) -> Result<usize> {
    let count = value.parse().ok().filter(|count| (1..=MAX_CONNECTIONS).contains(count));
    count.ok_or_else(|| invalid(format!("connections must be a number from 1 to {MAX_CONNECTIONS}, not `{value}`")))
}

fn read_host(url: &Url, parameters: &mut Parameters) -> Result<Host> {
    let (folder, user) = (parameters.take("host"), parameters.take("user"));
    let port =
        parameters.take("port").map(|port| port.parse().map_err(|_| invalid("port must be a number"))).transpose()?;
    match (url.host_str().filter(|host| !host.is_empty()), folder) {
        (Some(name), None) if user.is_none() && port.is_none() => {
            if name.contains(',') {
                return Err(invalid("a server's URL has only one host"));
            }
            Ok(Host::Name(name.trim_matches(['[', ']']).to_owned()))
        }
        (Some(_), _) => Err(invalid("a server's URL has a host, or host, user and port of a socket, not both")),
        (None, Some(path)) if path.starts_with('/') => Ok(Host::Folder { path, user, port }),
        (None, Some(_)) => Err(invalid("the parameter host is the folder of a socket, /run/postgresql for instance")),
        (None, None) => Err(invalid(SHAPE)),
    }
}

impl Host {
    /// Whether the connection does not leave this host.
    fn is_local(&self) -> bool {
        match self {
            Self::Folder { .. } => true,
            Self::Name(name) => {
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

impl PostgresUrl {
    /// The place of the tables: host, port, database and schema, without credentials. Two URLs that name one server in
    /// two ways have two places.
    pub fn place(&self) -> StorePlace {
        const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
        let user = || decode(self.url.username()).unwrap_or_default();
        let database = self.database().ok().flatten().unwrap_or_else(user);
        let database = utf8_percent_encode(&database, ENCODED);
        let schema = self.schema.name();
        StorePlace::new(match &self.host {
            Host::Name(name) => {
                let name = name.to_ascii_lowercase();
                let name = if name.contains(':') { format!("[{name}]") } else { name };
                format!("postgres://{name}:{}/{database}?schema={schema}", self.url.port().unwrap_or(PORT))
            }
            Host::Folder { path, port, .. } => {
                format!("postgres:///{database}?host={path}&port={}&schema={schema}", port.unwrap_or(PORT))
            }
        })
    }

    /// The driver's settings of a connection. Reads the password file.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::new();
        let in_url = (!self.url.username().is_empty()).then(|| decode(self.url.username())).transpose()?;
        let (user, port) = match &self.host {
            Host::Name(name) => {
                config.host(name);
                (in_url, self.url.port())
            }
            Host::Folder { path, user, port } => {
                config.host_path(path);
                (user.clone(), *port)
            }
        };
        config.port(port.unwrap_or(PORT)).application_name("hapax");
        if let Some(user) = user {
            config.user(user);
        }
        if let Some(path) = &self.password_file {
            let password = String::from_utf8(read_secret(path)?)
                .map_err(|source| unusable(format!("the password in {path} is not UTF-8")).caused_by(source))?;
            config.password(password.trim_end_matches(['\r', '\n']));
        } else if let Some(password) = self.url.password() {
            config.password(decode(password)?);
        }
        if let Some(database) = self.database()? {
            config.dbname(database);
        }
        let mode = if self.tls == TlsMode::Disable { SslMode::Disable } else { SslMode::Require };
        config.ssl_mode(mode).keepalives_idle(MAX_SILENCE).keepalives_interval(MAX_SILENCE / 5);
        config.tcp_user_timeout(MAX_SILENCE);
        Ok(config)
    }

    /// The name of the database; without one, the server takes that of the user.
    fn database(&self) -> Result<Option<String>> {
        let name = self.url.path().trim_start_matches('/');
        if name.contains('/') {
            return Err(invalid(SHAPE));
        }
        (!name.is_empty()).then(|| decode(name)).transpose()
    }
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|source| invalid(ENCODE).caused_by(source))
}

pub(super) fn read(path: &str) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|source| unusable(format!("cannot read {path}, which is named in the server's URL")).caused_by(source))
}

/// Reads a file with a secret. Refuses one that everybody can read, or that others can write.
pub(super) fn read_secret(path: &str) -> Result<Vec<u8>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A file without metadata cannot be read either, and that error names the cause.
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        // The group may read it: secrets are mounted like this for a process that does not run as root.
        if mode & 0o027 != 0 {
            return Err(unusable(format!(
                "{path}, which is named in the server's URL, can be read by everybody or written by others; run \
                 `chmod 600 {path}`"
            )));
        }
    }
    read(path)
}

pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

pub(super) fn unusable(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

/// Shows the URL without its password and parameters.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.url.clone();
        shown.set_query(None);
        if shown.password().is_some() {
            // This fails only for a URL without a host, and that has no password.
            let _ = shown.set_password(Some("***"));
        }
        fmt::Display::fmt(&shown, f)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

#[cfg(test)]
mod tests {
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
        for (url, tls) in [
            ("postgres://localhost/db", TlsMode::Disable),
            ("postgres://127.0.0.2/db", TlsMode::Disable),
            ("postgres://[::1]:6000/db", TlsMode::Disable),
            ("postgres:///db?host=/run/postgresql", TlsMode::Disable),
            ("postgresql://db.example", TlsMode::VerifyFull),
            ("postgres://10.0.0.1/db", TlsMode::VerifyFull),
            ("postgres://10.0.0.1/db?sslmode=disable", TlsMode::Disable),
            ("postgres://localhost/db?sslmode=verify-full", TlsMode::VerifyFull),
        ] {
            assert_eq!(parse(url).unwrap().tls, tls, "{url}");
        }
    }

    #[test]
    fn a_url_gives_the_settings_of_a_connection() {
        let url = parse("postgres://a%40b:p%23w@db.example:6000/my%20db?schema=other&connections=3").unwrap();
        let config = url.config().unwrap();
        assert_eq!((config.get_user(), config.get_dbname()), (Some("a@b"), Some("my db")));
        assert_eq!((config.get_password(), config.get_ports()), (Some(&b"p#w"[..]), &[6000][..]));
        assert_eq!((url.schema.clone(), url.connections), (Schema::new("other").unwrap(), 3));
        assert_eq!(url.to_string(), "postgres://a%40b:***@db.example:6000/my%20db");
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
            ("postgres://host/db?schema=a&schema=b", "only once"),
            ("postgres://host/db?schema=a.b", "not `a.b`"),
            ("postgres://host/db?sslmode=prefer", "verify-full"),
            ("postgres://host/db?sslcert=c.pem", "only together"),
            ("postgres://localhost/db?sslrootcert=ca.pem", "sslmode=verify-full"),
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
