//! The URL of a server: its address, credentials and certificates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, Result};
use hapax_net::tls::certificates_pem;
use hapax_net::url::{Host, HostCount, Login, ServerUrl, UrlShape, read, read_secret};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates,
};

use super::call_error::{DriverError, Transport};
use crate::errors::{invalid, unusable};

/// The URL of a Redis or Valkey server.
///
/// ```text
/// redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]               rediss://… over TLS
/// unix:///PATH[?user=USER&pass=PASSWORD&db=DATABASE]
/// redis+cluster://[USER:PASSWORD@]HOST[:6379][,HOST…]          rediss+cluster://… over TLS
/// ```
///
/// The URL of a cluster names some of its nodes, which tell the others. A cluster has no databases.
///
/// | parameter | |
/// |---|---|
/// | `password-file=PATH` | a file with the password, instead of a password in the URL |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
/// | `connections=N` | the number of connections for records to each server, 1 by default |
///
/// The files are read at start and again for each new connection, so a replaced file needs no restart. `Display` and
/// `Debug` hide the password.
///
/// ```
/// use hapax::stores::RedisUrl;
///
/// let url: RedisUrl = "redis://payments:secret@redis.example/2".parse()?;
/// assert_eq!(url.to_string(), "redis://payments:***@redis.example:6379/2");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    url: ServerUrl,
    database: i64,
    connections: usize,
    deployment: Deployment,
    /// The node of a cluster that this copy of the URL names.
    node: Option<Host>,
}

/// What the URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// One server, with its replicas behind it.
    Single,
    /// The nodes of a cluster.
    Cluster,
}

/// After this long without traffic the kernel probes the peer. On Linux it closes a connection whose peer has
/// acknowledged nothing for this long. A peer that only replies late is not affected.
const MAX_SILENCE: Duration = Duration::from_secs(5);

const SHAPE: UrlShape = UrlShape {
    schemes: &["redis", "rediss", "unix"],
    port: 6379,
    what: "a Redis server",
    example: "redis://HOST, rediss://HOST or unix:///PATH, redis://user:password@host:6379/0 for instance",
    hosts: HostCount::OneOrSocket,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["password-file", "ca", "cert", "key", "connections", "user", "pass", "db"],
};

const CLUSTER_SHAPE: UrlShape = UrlShape {
    schemes: &["redis+cluster", "rediss+cluster"],
    port: 6379,
    what: "a Redis cluster",
    example: "redis+cluster://HOST[,HOST…] or rediss+cluster://HOST[,HOST…]",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["password-file", "ca", "cert", "key", "connections"],
};

/// The parameters of a socket alone. Other URLs have them before the `?`.
const OF_SOCKETS: &[&str] = &["user", "pass", "db"];

impl FromStr for RedisUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a Redis server, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        if text.split_once("://").is_some_and(|(scheme, _)| scheme.to_ascii_lowercase().ends_with("+cluster")) {
            return Self::cluster(CLUSTER_SHAPE.parse(text)?);
        }
        let url = SHAPE.parse(text)?;
        let is_socket = url.scheme() == "unix";
        if is_socket != url.hosts().is_empty() || is_socket && url.path().is_empty() {
            return Err(SHAPE.wrong());
        }
        if let Some(name) = OF_SOCKETS.iter().find(|name| !is_socket && url.parameter(name).is_some()) {
            return Err(invalid(format!("the parameter `{name}` is for unix:///PATH")));
        }
        refuse_files_without_tls(&url)?;
        if url.parameter("pass").is_some() && url.parameter("password-file").is_some() {
            return Err(invalid("the URL has a password or a password-file, not both"));
        }
        let database = if is_socket { url.parameter("db").unwrap_or("") } else { url.path().trim_matches('/') };
        let database = if database.is_empty() { Ok(0) } else { database.parse() };
        let database = database.map_err(|_| SHAPE.wrong())?;
        let connections = url.number("connections", 1..=64)?.unwrap_or(1);
        Ok(Self { url, database, connections, deployment: Deployment::Single, node: None })
    }
}

/// Files for TLS need a scheme for TLS.
fn refuse_files_without_tls(url: &ServerUrl) -> Result<()> {
    if !url.scheme().starts_with("rediss") && url.has_tls_files() {
        return Err(invalid("ca, cert and key are for TLS: write rediss in the URL, not redis"));
    }
    Ok(())
}

impl RedisUrl {
    fn cluster(url: ServerUrl) -> Result<Self> {
        refuse_files_without_tls(&url)?;
        if !url.path().trim_matches('/').is_empty() {
            return Err(invalid("a Redis cluster has no databases: leave out what follows the hosts"));
        }
        let connections = url.number("connections", 1..=64)?.unwrap_or(1);
        Ok(Self { url, database: 0, connections, deployment: Deployment::Cluster, node: None })
    }

    /// The place of the records: host, port and database, or the socket, or the named nodes of a cluster, without
    /// credentials. Two URLs that name one server in two ways have two places.
    pub fn place(&self) -> StorePlace {
        let database = self.database;
        if self.deployment == Deployment::Cluster {
            let mut hosts: Vec<_> = self.url.hosts().iter().map(|host| host.to_string().to_ascii_lowercase()).collect();
            hosts.sort_unstable();
            return StorePlace::new(format!("redis+cluster://{}", hosts.join(",")));
        }
        StorePlace::new(match self.url.hosts() {
            // With and without TLS, a server has the same records.
            [host, ..] => format!("redis://{}/{database}", host.to_string().to_ascii_lowercase()),
            [] => format!("unix:///{}?db={database}", self.url.encoded_path()),
        })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// The named hosts.
    pub(super) fn hosts(&self) -> &[Host] {
        self.url.hosts()
    }

    /// The same URL for this node of the cluster.
    pub(super) fn at(&self, node: Host) -> Self {
        Self { node: Some(node), ..self.clone() }
    }

    pub(super) fn node(&self) -> Option<&Host> {
        self.node.as_ref()
    }

    pub(super) fn transport(&self) -> Transport {
        if self.url.scheme().starts_with("rediss") { Transport::Tls } else { Transport::Plain }
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
        let failed =
            |source| unusable("the server's URL or its certificates cannot be used").caused_by(DriverError(source));
        let login = self.login()?.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = self.address().into_connection_info().map_err(failed)?;
        let info: ConnectionInfo = info.set_redis_settings(login).set_tcp_settings(tcp_settings());
        let client = match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        Ok((client.map_err(failed)?, self.database))
    }

    fn address(&self) -> ConnectionAddr {
        let Some(host) = self.node.as_ref().or(self.url.hosts().first()) else {
            return ConnectionAddr::Unix(format!("/{}", self.url.path()).into());
        };
        let (host, port) = (host.name.clone(), host.port);
        match self.transport() {
            Transport::Tls => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            Transport::Plain => ConnectionAddr::Tcp(host, port),
        }
    }

    fn login(&self) -> Result<RedisConnectionInfo> {
        let credentials = self.url.credentials()?;
        let in_parameter = |name| self.url.parameter(name).map(str::to_owned);
        let mut login = RedisConnectionInfo::default();
        if let Some(user) = credentials.user.or_else(|| in_parameter("user")) {
            login = login.set_username(user);
        }
        if let Some(password) = credentials.password.or_else(|| in_parameter("pass")) {
            login = login.set_password(password);
        }
        Ok(login)
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>> {
        if !self.uses_tls() {
            return Ok(None);
        }
        let root_cert = self.url.parameter("ca").map(|path| certificates_pem(path.as_ref())).transpose()?;
        let client_tls = match (self.url.parameter("cert"), self.url.parameter("key")) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read_secret(key)? })
            }
            (_, None) | (None, _) => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(MAX_SILENCE).with_interval(MAX_SILENCE / 5);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(MAX_SILENCE);
    settings
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
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
            ("redis+cluster://u:secret@B.example,a.example:7000", "redis+cluster://a.example:7000,b.example:6379"),
            ("rediss+cluster://a.example", "redis+cluster://a.example:6379"),
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
            ("redis+cluster://", "redis+cluster://HOST"),
            ("redis+cluster://a,b/2", "no databases"),
            ("redis+cluster://a,b?ca=ca.pem", "write rediss"),
            ("redis://a,b", "only one host"),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert!(error.to_string().contains(remedy), "{text}: {error}");
        }
        assert!("redis://:a%23b@host".parse::<RedisUrl>().is_ok());
    }
}
