//! The URL of a server or a cluster: its hosts, credentials and parameters.
//!
//! It is read by hand, because a URL in the sense of the standard has one host. The parameters that several systems
//! have are named alike: `ca`, `cert` and `key` for TLS, `tls`, `password-file`, and `timeout` in seconds.

mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::files;
#[cfg(feature = "tls")]
use crate::tls::TlsFiles;

/// What the URLs of one system look like.
#[derive(Clone, Copy, Debug)]
pub struct UrlShape {
    /// The schemes.
    pub schemes: &'static [&'static str],
    /// The port of a host that is written without one.
    pub port: u16,
    /// What it is the URL of, with an article, for errors.
    pub what: &'static str,
    /// How it is written, with an example, for errors.
    pub example: &'static str,
    /// How many hosts it has.
    pub hosts: HostCount,
    /// Who may log in.
    pub login: Login,
    /// Whether a `/` must follow the hosts. The path behind it may still be empty.
    pub needs_path: bool,
    /// The names of the parameters.
    pub parameters: &'static [&'static str],
}

/// How many hosts a URL has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCount {
    /// One, or none for a server behind a socket of this machine.
    OneOrSocket,
    /// One or more, with commas between them.
    Several,
}

/// Who may log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// A password needs no user name: the server has a user of its own for it.
    AnyUser,
    /// A password needs a user name.
    NamedUser,
    /// A password needs a user name. A user name without a password is a token, and as secret as a password.
    NamedUserOrToken,
}

/// The parts of a URL such as `nats://user:password@host:4222,other:4222/stream?durable=billing`.
///
/// `Display` writes `***` instead of a password, a token and the parameter `pass`, and shows the port of each host.
///
/// ```
/// use hapax_net::url::{HostCount, Login, UrlShape};
///
/// const SHAPE: UrlShape = UrlShape {
///     schemes: &["amqp"],
///     port: 5672,
///     what: "a queue",
///     example: "amqp://HOST/QUEUE",
///     hosts: HostCount::Several,
///     login: Login::NamedUser,
///     needs_path: true,
///     parameters: &["ca"],
/// };
/// let url = SHAPE.parse("amqp://me:secret@a,b:7/orders?ca=/etc/ca.pem")?;
/// assert_eq!(url.to_string(), "amqp://me:***@a:5672,b:7/orders?ca=/etc/ca.pem");
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    scheme: &'static str,
    hosts: Vec<Host>,
    user: Option<String>,
    password: Option<String>,
    login: Login,
    /// As it is written.
    encoded_path: String,
    path: String,
    parameters: BTreeMap<String, String>,
}

/// A host and its port. `Display` puts the address of IPv6 in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// The port, also if the URL leaves it out.
    pub port: u16,
}

impl Host {
    /// Whether connections to it stay on this machine, as far as its name tells.
    pub fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// The name and the password of a user. Either may be missing.
#[derive(Default)]
pub struct Credentials {
    /// The name.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

/// The parameters whose value is never shown.
const SECRET: &[&str] = &["pass"];

impl ServerUrl {
    /// The scheme.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The hosts. None for a server behind a socket.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts with their ports, and commas between them.
    pub fn addresses(&self) -> String {
        let addresses: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        addresses.join(",")
    }

    /// The path without its first `/`, decoded.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path without its first `/`, as it is written.
    pub fn encoded_path(&self) -> &str {
        &self.encoded_path
    }

    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// The value of a parameter that must be there.
    ///
    /// # Errors
    /// `Invalid` if the URL does not have it.
    pub fn required(&self, name: &str) -> Result<&str> {
        self.parameter(name).ok_or_else(|| invalid(format!("the URL needs the parameter `{name}`")))
    }

    /// The value of a parameter that is a whole number.
    ///
    /// # Errors
    /// `Invalid` if it is none, or not in this range.
    pub fn number<N: FromStr + PartialOrd + fmt::Display>(
        &self,
        name: &str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>> {
        self.in_range(name, range, "a number")
    }

    /// The value of a parameter in seconds.
    ///
    /// # Errors
    /// `Invalid` if it is no whole number of seconds, or not in this range.
    pub fn seconds(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<Duration>> {
        Ok(self.in_range(name, range, "a number of seconds")?.map(Duration::from_secs))
    }

    fn in_range<N>(&self, name: &str, range: RangeInclusive<N>, what: &str) -> Result<Option<N>>
    where
        N: FromStr + PartialOrd + fmt::Display,
    {
        let Some(value) = self.parameter(name) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| range.contains(number));
        let (least, most) = range.into_inner();
        let wrong = || invalid(format!("the parameter `{name}` is {what} from {least} to {most}, not `{value}`"));
        number.ok_or_else(wrong).map(Some)
    }

    /// Whether the URL names a file for TLS.
    pub fn has_tls_files(&self) -> bool {
        ["ca", "cert", "key"].iter().any(|name| self.parameters.contains_key(*name))
    }

    /// The files for TLS that the URL names.
    #[cfg(feature = "tls")]
    pub fn tls_files(&self) -> TlsFiles {
        let path = |name| self.parameter(name).map(PathBuf::from);
        TlsFiles { ca: path("ca"), identity: path("cert").zip(path("key")) }
    }

    /// Whether the URL demands TLS: by `tls=yes`, or because it names a file for TLS. If not, the server may demand TLS
    /// all the same.
    ///
    /// # Errors
    /// `Invalid` if `tls` is neither `yes` nor `no`, or a file is named beside `tls=no`.
    pub fn uses_tls(&self) -> Result<bool> {
        match self.parameter("tls") {
            Some("yes") => Ok(true),
            None => Ok(self.has_tls_files()),
            Some("no") if !self.has_tls_files() => Ok(false),
            Some("no") => Err(invalid("ca, cert and key are for TLS: leave out tls=no")),
            Some(_) => Err(invalid("the parameter `tls` is yes or no")),
        }
    }

    /// The name of the user, or a token.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether there is a password, here or in a file.
    pub fn has_password(&self) -> bool {
        self.password.is_some() || self.parameters.contains_key("password-file")
    }

    /// The user and the password, which may be in a file.
    ///
    /// # Errors
    /// As [`read_secret_line`].
    pub fn credentials(&self) -> Result<Credentials> {
        let password = match self.parameter("password-file") {
            Some(path) => Some(read_secret_line(path)?),
            None => self.password.clone(),
        };
        Ok(Credentials { user: self.user.clone(), password })
    }

    fn login_as_shown(&self) -> Option<String> {
        const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
        let user = self.user.as_deref().map(|user| utf8_percent_encode(user, ENCODED).to_string());
        if self.password.is_some() {
            return Some(format!("{}:***", user.unwrap_or_default()));
        }
        let is_token = self.login == Login::NamedUserOrToken && !self.has_password();
        user.map(|user| if is_token { "***".into() } else { user })
    }
}

/// Whether the text is the address of a service, as the parameter `endpoint` has it: `http://` or `https://`, a host,
/// and perhaps a port.
pub fn is_endpoint(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let host = rest.trim_end_matches('/');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    ["http", "https"].contains(&scheme) && !host.is_empty() && host.bytes().all(is_plain)
}

/// Reads a file that the URL names.
///
/// # Errors
/// `Unusable` if it cannot be read.
pub fn read(path: &str) -> Result<Vec<u8>> {
    files::read(Path::new(path)).map_err(|error| unusable(path, &error))
}

/// Reads a file with a secret that the URL names.
///
/// # Errors
/// `Unusable` if it cannot be read, if its group can write it, or if other users have any right to it.
pub fn read_secret(path: &str) -> Result<Vec<u8>> {
    files::read_secret(Path::new(path)).map_err(|error| unusable(path, &error))
}

/// Reads a file with a secret of one line that the URL names, without the end of the line.
///
/// # Errors
/// As [`read_secret`], and if it is not text.
pub fn read_secret_line(path: &str) -> Result<String> {
    files::read_secret_line(Path::new(path)).map_err(|error| unusable(path, &error))
}

fn unusable(path: &str, cause: &Error) -> Error {
    Error::new(ErrorKind::Unusable, format!("cannot read {path}, which is named in the URL: {cause}"))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if let Some(login) = self.login_as_shown() {
            write!(f, "{login}@")?;
        }
        write!(f, "{}/{}", self.addresses(), self.encoded_path)?;
        for (index, (name, value)) in self.parameters.iter().enumerate() {
            let value = if SECRET.contains(&name.as_str()) { "***" } else { value };
            write!(f, "{}{name}={value}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({self})")
    }
}

/// Hides the password, and a name, which may be a token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
