//! The URL of a server: its address, credentials and certificates.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, ErrorKind, Result};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ClientTlsConfig, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;
use url::form_urlencoded::Serializer;

use super::call_error::{DriverError, Transport};

/// The URL of a Redis or Valkey server.
///
/// ```text
/// redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]               rediss://… over TLS
/// unix:///PATH[?user=USER&pass=PASSWORD&db=DATABASE]
/// ```
///
/// | parameter | |
/// |---|---|
/// | `password-file=PATH` | a file with the password, instead of a password in the URL |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
/// | `connections=N` | the number of connections for records, 1 by default |
///
/// The files are read at start and again for each new connection, so a replaced file needs no restart. `Display` and
/// `Debug` hide the password.
///
/// ```
/// use hapax::stores::RedisUrl;
///
/// let url: RedisUrl = "redis://payments:secret@redis.example/2".parse()?;
/// assert_eq!(url.to_string(), "redis://payments:***@redis.example/2");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The URL without the parameters below, which the driver does not know.
    url: Url,
    password_file: Option<String>,
    ca: Option<String>,
    identity: Option<(String, String)>,
    connections: usize,
}

/// After this long without traffic the kernel probes the peer. On Linux it closes a connection whose peer has
/// acknowledged nothing for this long. A peer that only replies late is not affected.
const MAX_SILENCE: Duration = Duration::from_secs(5);

const SHAPE: &str =
    "a server's URL is redis://HOST, rediss://HOST or unix:///PATH, redis://user:password@host:6379/0 for instance";
const PARAMETERS: &str = "password-file, ca, cert, key and connections; for unix:// also user, pass and db";
const ENCODE: &str = "a server's URL has no fragment (#), and a value for each parameter; \
     in a password write #, ?, / and @ as %23, %3F, %2F and %40";
const MAX_CONNECTIONS: usize = 64;
const PORT: u16 = 6379;

impl FromStr for RedisUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a Redis server, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        // A `#` or `?` in a password that is not encoded ends the host before the `@`.
        let is_not_encoded = text.split_once(['#', '?']).is_some_and(|(_, rest)| rest.contains('@'));
        let shape = if is_not_encoded { ENCODE } else { SHAPE };
        let url = Url::parse(text).map_err(|source| invalid(shape).caused_by(source))?;
        let mut this = Self { url: url.clone(), password_file: None, ca: None, identity: None, connections: 1 };
        if url.fragment().is_some() {
            return Err(invalid(ENCODE));
        }
        let is_socket = url.scheme() == "unix";
        let (mut cert, mut key, mut driver_parameters) = (None, None, Vec::new());
        for (name, value) in url.query_pairs() {
            match &*name {
                "password-file" => this.password_file = Some(value.into()),
                "ca" => this.ca = Some(value.into()),
                "cert" => cert = Some(value.into_owned()),
                "key" => key = Some(value.into_owned()),
                "connections" => this.connections = parse_connections(&value)?,
                "user" | "pass" | "db" if is_socket => driver_parameters.push((name, value)),
                // The end of a password that is not encoded.
                _ if value.is_empty() || name.contains(['@', ':', '/']) => return Err(invalid(ENCODE)),
                _ => return Err(invalid(format!("a server's URL has no parameter `{name}`; it takes {PARAMETERS}"))),
            }
        }
        this.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) | (None, Some(_)) => return Err(invalid("a server's URL has cert and key only together")),
        };
        if !this.uses_tls() && (this.ca.is_some() || this.identity.is_some()) {
            return Err(invalid("ca, cert and key are for TLS: write rediss://"));
        }
        // The driver refuses parameters that it does not know.
        this.url.set_query(None);
        if !driver_parameters.is_empty() {
            this.url.set_query(Some(&Serializer::new(String::new()).extend_pairs(driver_parameters).finish()));
        }
        this.url.clone().into_connection_info().map_err(|source| invalid(SHAPE).caused_by(source))?;
        Ok(this)
    }
}

fn parse_connections(value: &str) -> Result<usize> {
    let count = value.parse().ok().filter(|count| (1..=MAX_CONNECTIONS).contains(count));
    count.ok_or_else(|| invalid(format!("connections must be a number from 1 to {MAX_CONNECTIONS}, not `{value}`")))
}

impl RedisUrl {
    /// The place of the records: host, port and database, or the socket, without credentials. Two URLs that name one
    /// server in two ways have two places.
    pub fn place(&self) -> StorePlace {
        let info = self.url.clone().into_connection_info();
        let database = info.map_or(0, |info| info.redis_settings().db());
        StorePlace::new(match self.url.host_str().filter(|host| !host.is_empty()) {
            // With and without TLS, a server has the same records.
            Some(host) => {
                format!("redis://{}:{}/{database}", host.to_ascii_lowercase(), self.url.port().unwrap_or(PORT))
            }
            None => format!("unix://{}?db={database}", self.url.path()),
        })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn transport(&self) -> Transport {
        if self.url.scheme() == "rediss" { Transport::Tls } else { Transport::Plain }
    }

    fn uses_tls(&self) -> bool {
        self.transport() == Transport::Tls
    }

    /// Builds a client, and returns the number of the database, which the caller must select. Reads the files in the
    /// URL.
    ///
    /// The driver reports the server's error only for the first command of its handshake, so the handshake must have
    /// only one.
    pub(super) fn client(&self) -> Result<(Client, i64)> {
        let mut info = self.url.clone().into_connection_info().map_err(|source| unusable(SHAPE).caused_by(source))?;
        if let Some(path) = &self.password_file {
            let password = String::from_utf8(read_secret(path)?)
                .map_err(|source| unusable(format!("the password in {path} is not UTF-8")).caused_by(source))?;
            let settings = info.redis_settings().clone().set_password(password.trim_end_matches(['\r', '\n']));
            info = info.set_redis_settings(settings);
        }
        let database = info.redis_settings().db();
        let handshake = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = info.set_redis_settings(handshake.set_db(0)).set_tcp_settings(tcp_settings());
        let client = match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let client = client.map_err(|source| {
            unusable("the server's URL or its certificates cannot be used").caused_by(DriverError(source))
        })?;
        Ok((client, database))
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>> {
        if !self.uses_tls() {
            return Ok(None);
        }
        let root_cert = self.ca.as_deref().map(read_authority).transpose()?;
        let client_tls = match &self.identity {
            Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read_secret(key)? }),
            None => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

fn read(path: &str) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|source| unusable(format!("cannot read {path}, which is named in the server's URL")).caused_by(source))
}

/// Reads a file with a secret. Refuses one that everybody can read, or that others can write.
fn read_secret(path: &str) -> Result<Vec<u8>> {
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

/// Reads the authority's file. Refuses a file without certificates: the driver accepts it and then trusts no server.
fn read_authority(path: &str) -> Result<Vec<u8>> {
    let pem = read(path)?;
    if !CertificateDer::pem_slice_iter(&pem).any(|certificate| certificate.is_ok()) {
        return Err(unusable(format!("there is no certificate in {path}, which is named in the server's URL")));
    }
    Ok(pem)
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(MAX_SILENCE).with_interval(MAX_SILENCE / 5);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(MAX_SILENCE);
    settings
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn unusable(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

/// Shows the URL without its password and parameters.
impl fmt::Display for RedisUrl {
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

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_has_no_credentials_and_names_the_database() {
        for (url, place) in [
            ("redis://u:secret@Redis.example", "redis://redis.example:6379/0"),
            ("rediss://redis.example:6380/2", "redis://redis.example:6380/2"),
            ("redis://[::1]/1", "redis://[::1]:6379/1"),
            ("unix:///run/redis.sock?user=u&pass=secret&db=3", "unix:///run/redis.sock?db=3"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
        ] {
            let shown = url.parse::<RedisUrl>().unwrap().place().to_string();
            assert_eq!(shown, place);
            assert_eq!(shown.parse::<RedisUrl>().unwrap().place().to_string(), place, "a place is a URL of itself");
        }
    }

    #[test]
    fn the_error_for_a_malformed_url_says_what_to_write() {
        for (text, remedy) in [
            ("redis://:a#b@host", "%23"),
            ("redis://:a?b@host", "%3F"),
            ("redis://host#part", "%23"),
            ("redis://", "redis://HOST"),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert!(error.to_string().contains(remedy), "{text}: {error}");
        }
        assert!("redis://:a%23b@host".parse::<RedisUrl>().is_ok());
    }
}
