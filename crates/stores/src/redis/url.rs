//! Where a server is and how to get in, by its URL.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, Result};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ClientTlsConfig, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;
use url::form_urlencoded::Serializer;

use super::failure::{By, Said};

/// The URL of a Redis or Valkey server.
///
/// ```text
/// redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]     rediss://… by TLS     unix:///PATH[?user=USER&pass=PASSWORD&db=DATABASE]
/// ```
///
/// | parameter | |
/// |---|---|
/// | `password-file=PATH` | the password, instead of writing it here |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's |
/// | `cert=PATH`, `key=PATH` | TLS: our own certificate and its key (PEM), where the server asks for one |
/// | `connections=N` | connections for the records, 1 by default |
///
/// The files are read at the start and whenever a connection is made, so that one that was replaced needs no restart. It is shown
/// without its password.
///
/// ```
/// use hapax_stores::RedisUrl;
///
/// let url: RedisUrl = "redis://payments:secret@redis.example/2".parse()?;
/// assert_eq!(url.to_string(), "redis://payments:***@redis.example/2");
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Without the parameters below, which the driver does not know.
    url: Url,
    password_file: Option<String>,
    ca: Option<String>,
    identity: Option<(String, String)>,
    connections: usize,
}

/// A server that is silent for so long on a connection is given up by the kernel.
const SILENCE: Duration = Duration::from_secs(5);

const SHAPE: &str =
    "a server's URL is redis://HOST, rediss://HOST or unix:///PATH, redis://user:password@host:6379/0 for instance";
const PARAMETERS: &str = "password-file, ca, cert, key and connections; for unix:// also user, pass and db";
const ENCODE: &str = "a server's URL has no part after #; in a password write #, ?, / and @ as %23, %3F, %2F and %40";
const MOST_CONNECTIONS: usize = 64;

impl FromStr for RedisUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` for what is no URL of a server, and for a parameter that is not known.
    fn from_str(text: &str) -> Result<Self> {
        // Where # or ? come before the @ of a password, the host ends with them.
        let is_cut = text.split_once(['#', '?']).is_some_and(|(_, rest)| rest.contains('@'));
        let shape = if is_cut { ENCODE } else { SHAPE };
        let url = Url::parse(text).map_err(|source| invalid(shape).caused_by(source))?;
        let mut this = Self { url: url.clone(), password_file: None, ca: None, identity: None, connections: 1 };
        if url.fragment().is_some() {
            return Err(invalid(ENCODE));
        }
        let is_socket = url.scheme() == "unix";
        let (mut cert, mut key, mut theirs) = (None, None, Vec::new());
        for (name, value) in url.query_pairs() {
            match &*name {
                "password-file" => this.password_file = Some(value.into()),
                "ca" => this.ca = Some(value.into()),
                "cert" => cert = Some(value.into_owned()),
                "key" => key = Some(value.into_owned()),
                "connections" => this.connections = connections(&value)?,
                "user" | "pass" | "db" if is_socket => theirs.push((name, value)),
                // What is no name may be a password that was not encoded.
                _ if name.contains('@') => return Err(invalid(ENCODE)),
                _ => return Err(invalid(format!("a server's URL has no parameter `{name}`; it takes {PARAMETERS}"))),
            }
        }
        this.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) | (None, Some(_)) => return Err(invalid("a server's URL names cert and key together")),
        };
        if !this.is_secured() && (this.ca.is_some() || this.identity.is_some()) {
            return Err(invalid("ca, cert and key are for TLS: write rediss://"));
        }
        this.url.set_query(None);
        if !theirs.is_empty() {
            this.url.set_query(Some(&Serializer::new(String::new()).extend_pairs(theirs).finish()));
        }
        this.url.clone().into_connection_info().map_err(|source| invalid(SHAPE).caused_by(source))?;
        Ok(this)
    }
}

fn connections(value: &str) -> Result<usize> {
    let count = value.parse().ok().filter(|count| (1..=MOST_CONNECTIONS).contains(count));
    count.ok_or_else(|| invalid(format!("connections is a number from 1 to {MOST_CONNECTIONS}, not `{value}`")))
}

impl RedisUrl {
    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    /// How it is reached.
    pub(super) fn by(&self) -> By {
        if self.url.scheme() == "rediss" { By::Tls } else { By::Plain }
    }

    fn is_secured(&self) -> bool {
        self.by() == By::Tls
    }

    /// A client for the server, and the number of its database, which the client does not ask for. Reads the files that the URL names.
    ///
    /// The driver passes on what a server says to the first command of its greeting, and to no other: so that is its only one.
    pub(super) fn client(&self) -> Result<(Client, i64)> {
        let mut info = self.url.clone().into_connection_info().map_err(|source| unusable(SHAPE).caused_by(source))?;
        if let Some(path) = &self.password_file {
            let password = String::from_utf8(read(path)?)
                .map_err(|source| unusable(format!("the password in {path} is no text")).caused_by(source))?;
            let settings = info.redis_settings().clone().set_password(password.trim_end_matches(['\r', '\n']));
            info = info.set_redis_settings(settings);
        }
        let database = info.redis_settings().db();
        let greeting = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = info.set_redis_settings(greeting.set_db(0)).set_tcp_settings(tcp());
        let client = match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let client = client
            .map_err(|source| unusable("the certificates that the URL names cannot be used").caused_by(Said(source)))?;
        Ok((client, database))
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>> {
        if !self.is_secured() {
            return Ok(None);
        }
        let root_cert = self.ca.as_deref().map(authority).transpose()?;
        let client_tls = match &self.identity {
            Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
            None => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

fn read(path: &str) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|source| unusable(format!("cannot read {path}, which the server's URL names")).caused_by(source))
}

/// The driver takes a file with no certificate for an authority that nobody can be signed by.
fn authority(path: &str) -> Result<Vec<u8>> {
    let pem = read(path)?;
    if !CertificateDer::pem_slice_iter(&pem).any(|certificate| certificate.is_ok()) {
        return Err(unusable(format!("there is no certificate in {path}, which the server's URL names")));
    }
    Ok(pem)
}

fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 5);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE);
    settings
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn unusable(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

/// Without the password, and without the parameters.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.url.clone();
        shown.set_query(None);
        if shown.password().is_some() {
            // Fails only for URLs without a host, which have no password.
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
    fn a_password_that_was_not_encoded_is_met_with_how_to() {
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
