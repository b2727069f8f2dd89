//! The URL of a server: its address, credentials and certificates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::journal::StorePlace;
use hapax_core::{Error, Result};
use hapax_net::tls::certificates_pem;
use hapax_net::url::{Host, HostCount, Login, ServerUrl, UrlShape, read, read_secret, read_secret_line};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates,
};

use super::call_error::{DriverError, Transport};
use super::link::WriteConfirmation;
use crate::errors::{invalid, unusable};

/// The URL of a Redis or Valkey server.
///
/// ```text
/// redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]               rediss://… over TLS
/// unix:///PATH[?user=USER&pass=PASSWORD&db=DATABASE]
/// redis+cluster://[USER:PASSWORD@]HOST[:6379][,HOST…]          rediss+cluster://… over TLS
/// redis+sentinel://[USER:PASSWORD@]HOST[:26379][,HOST…]/MASTER[/DATABASE]
/// ```
///
/// The URL of a cluster names some of its nodes, which tell the others. A cluster has no databases. A URL with
/// sentinels names all sentinels of a master, and user and password are those of its servers. `rediss+sentinel://`
/// speaks TLS with both.
///
/// | parameter | |
/// |---|---|
/// | `password-file=PATH` | a file with the password, instead of a password in the URL |
/// | `ca=PATH` | TLS: the authority that signed the server's certificate (PEM), instead of the system's authorities |
/// | `cert=PATH`, `key=PATH` | TLS: a client certificate and its key (PEM), if the server demands one |
/// | `sentinel-user=USER`, `sentinel-password-file=PATH` | the login at the sentinels, none by default |
/// | `min-replicas=unchecked` | with sentinels: use a master that takes writes without a replica; see the guide |
/// | `connections=N` | the number of connections for records to each server, 1 by default |
/// | `wait=N:MS` | a write counts when N replicas have it within MS milliseconds; else its outcome is unknown |
/// | `aof=synced` | with `wait`: when they and the master have it on disk; with `wait=0:MS`, when the master has |
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
    /// The server that this copy of the URL is for: a node of the cluster, or one that the sentinels name.
    node: Option<Host>,
    confirmation: Option<WriteConfirmation>,
}

/// What the URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// One server, with its replicas behind it.
    Single,
    /// The nodes of a cluster.
    Cluster,
    /// The sentinels of a master.
    Sentinel,
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
    parameters: &["password-file", "ca", "cert", "key", "connections", "wait", "aof", "user", "pass", "db"],
};

const CLUSTER_SHAPE: UrlShape = UrlShape {
    schemes: &["redis+cluster", "rediss+cluster"],
    port: 6379,
    what: "a Redis cluster",
    example: "redis+cluster://HOST[,HOST…] or rediss+cluster://HOST[,HOST…]",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["password-file", "ca", "cert", "key", "connections", "wait", "aof"],
};

const SENTINEL_SHAPE: UrlShape = UrlShape {
    schemes: &["redis+sentinel", "rediss+sentinel"],
    port: 26_379,
    what: "a Redis master with sentinels",
    example: "redis+sentinel://HOST[,HOST…]/MASTER, with each sentinel and the name that they have for the master",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: true,
    parameters: &[
        "password-file",
        "ca",
        "cert",
        "key",
        "connections",
        "wait",
        "aof",
        "sentinel-user",
        "sentinel-password-file",
        "min-replicas",
    ],
};

/// The parameters of a socket alone. Other URLs have them before the `?`.
const OF_SOCKETS: &[&str] = &["user", "pass", "db"];

impl FromStr for RedisUrl {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a Redis server, or has an unknown parameter.
    fn from_str(text: &str) -> Result<Self> {
        let (scheme, _) = text.trim().split_once("://").unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        if scheme.ends_with("+cluster") {
            return Self::cluster(CLUSTER_SHAPE.parse(text)?);
        }
        if scheme.ends_with("+sentinel") {
            return Self::sentinel(SENTINEL_SHAPE.parse(text)?);
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
        Self::of(url, database, Deployment::Single)
    }
}

/// Files for TLS need a scheme for TLS.
fn refuse_files_without_tls(url: &ServerUrl) -> Result<()> {
    if !url.scheme().starts_with("rediss") && url.has_tls_files() {
        return Err(invalid("ca, cert and key are for TLS: write rediss in the URL, not redis"));
    }
    Ok(())
}

/// Each sentinel has one vote.
fn refuse_equal_sentinels(url: &ServerUrl) -> Result<()> {
    let mut hosts: Vec<_> = url.hosts().iter().map(|host| host.to_string().to_ascii_lowercase()).collect();
    hosts.sort_unstable();
    match hosts.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("the URL names the sentinel {} twice: each has one vote", pair[0]))),
        None => Ok(()),
    }
}

/// Reads `wait=N:MS` and `aof=synced`.
fn confirmation(url: &ServerUrl) -> Result<Option<WriteConfirmation>> {
    let on_disk = match url.parameter("aof") {
        None => false,
        Some("synced") => true,
        Some(_) => return Err(invalid("the parameter `aof` is synced, or left out")),
    };
    let Some(wait) = url.parameter("wait") else {
        return if on_disk { Err(invalid("the URL has aof=synced only together with wait=N:MS")) } else { Ok(None) };
    };
    let numbers = wait.split_once(':').and_then(|(count, millis)| Some((count.parse().ok()?, millis.parse().ok()?)));
    match numbers {
        Some((replicas, millis)) if (1..=60_000).contains(&millis) && (on_disk || replicas > 0) => {
            Ok(Some(WriteConfirmation { replicas, millis, on_disk }))
        }
        Some((0, _)) if !on_disk => Err(invalid("wait=0:MS waits for nothing, unless aof=synced is there as well")),
        Some(_) | None => Err(invalid(
            "the parameter `wait` is the number of replicas and the longest wait in milliseconds, from 1 to 60000: \
             wait=1:200 for instance",
        )),
    }
}

impl RedisUrl {
    fn of(url: ServerUrl, database: i64, deployment: Deployment) -> Result<Self> {
        let connections = url.number("connections", 1..=64)?.unwrap_or(1);
        let confirmation = confirmation(&url)?;
        Ok(Self { url, database, connections, deployment, node: None, confirmation })
    }

    fn cluster(url: ServerUrl) -> Result<Self> {
        refuse_files_without_tls(&url)?;
        if !url.path().trim_matches('/').is_empty() {
            return Err(invalid("a Redis cluster has no databases: leave out what follows the hosts"));
        }
        Self::of(url, 0, Deployment::Cluster)
    }

    fn sentinel(url: ServerUrl) -> Result<Self> {
        refuse_files_without_tls(&url)?;
        let (master, database) = url.path().split_once('/').unwrap_or((url.path(), ""));
        if master.is_empty() {
            return Err(SENTINEL_SHAPE.wrong());
        }
        let database = if database.is_empty() { Ok(0) } else { database.parse() };
        let database = database.map_err(|_| SENTINEL_SHAPE.wrong())?;
        if url.parameter("min-replicas").is_some_and(|value| value != "unchecked") {
            return Err(invalid("the parameter `min-replicas` is unchecked, or left out"));
        }
        if url.parameter("sentinel-user").is_some() && url.parameter("sentinel-password-file").is_none() {
            return Err(invalid("the URL has sentinel-user only together with sentinel-password-file"));
        }
        refuse_equal_sentinels(&url)?;
        Self::of(url, database, Deployment::Sentinel)
    }

    /// The place of the records: host, port and database, or the socket, or the named nodes of a cluster, without
    /// credentials. Two URLs that name one server in two ways have two places.
    pub fn place(&self) -> StorePlace {
        let database = self.database;
        let mut hosts: Vec<_> = self.url.hosts().iter().map(|host| host.to_string().to_ascii_lowercase()).collect();
        hosts.sort_unstable();
        let hosts = hosts.join(",");
        // With and without TLS, a server has the same records.
        StorePlace::new(match self.deployment {
            Deployment::Single if hosts.is_empty() => format!("unix:///{}?db={database}", self.url.encoded_path()),
            Deployment::Single => format!("redis://{hosts}/{database}"),
            Deployment::Cluster => format!("redis+cluster://{hosts}"),
            Deployment::Sentinel => {
                let (master, _) = self.url.encoded_path().split_once('/').unwrap_or((self.url.encoded_path(), ""));
                format!("redis+sentinel://{hosts}/{master}/{database}")
            }
        })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    /// When a write counts. `None`: when the server has applied it.
    pub(super) fn confirmation(&self) -> Option<WriteConfirmation> {
        self.confirmation
    }

    pub(super) fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// The named hosts.
    pub(super) fn hosts(&self) -> &[Host] {
        self.url.hosts()
    }

    /// The name that the sentinels have for the master.
    pub(super) fn master_name(&self) -> &str {
        self.url.path().split('/').next().unwrap_or_default()
    }

    /// Whether a master is used that takes writes without a replica.
    pub(super) fn allows_lone_master(&self) -> bool {
        self.url.parameter("min-replicas") == Some("unchecked")
    }

    /// A client of this sentinel. Reads the files in the URL.
    pub(super) fn sentinel_client(&self, sentinel: &Host) -> Result<Client> {
        let mut login = RedisConnectionInfo::default();
        if let Some(user) = self.url.parameter("sentinel-user") {
            login = login.set_username(user);
        }
        if let Some(path) = self.url.parameter("sentinel-password-file") {
            login = login.set_password(read_secret_line(path)?);
        }
        self.client_of(self.address_of(sentinel), login)
    }

    /// The same URL for this server: a node of the cluster, or one that the sentinels name.
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
        Ok((self.client_of(self.address(), self.login()?)?, self.database))
    }

    fn client_of(&self, address: ConnectionAddr, login: RedisConnectionInfo) -> Result<Client> {
        let failed =
            |source| unusable("the server's URL or its certificates cannot be used").caused_by(DriverError(source));
        let login = login.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = address.into_connection_info().map_err(failed)?;
        let info: ConnectionInfo = info.set_redis_settings(login).set_tcp_settings(tcp_settings());
        let client = match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        client.map_err(failed)
    }

    fn address(&self) -> ConnectionAddr {
        let Some(host) = self.node.as_ref().or(self.url.hosts().first()) else {
            return ConnectionAddr::Unix(format!("/{}", self.url.path()).into());
        };
        self.address_of(host)
    }

    fn address_of(&self, host: &Host) -> ConnectionAddr {
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
mod tests;
