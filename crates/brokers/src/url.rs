//! The URL of a broker: its addresses, credentials and parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use hapax_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

/// The parts of a URL such as `nats://user:password@host:4222,other:4222/stream?durable=billing`.
///
/// It is read by hand, because a URL in the sense of the standard has one host.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BrokerUrl {
    pub(crate) scheme: &'static str,
    /// Each with its port.
    pub(crate) hosts: Vec<String>,
    user: Option<String>,
    password: Option<String>,
    pub(crate) path: String,
    pub(crate) parameters: BTreeMap<String, String>,
}

/// The name and the password of a user. Either may be missing.
#[derive(Default)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// What the URLs of one broker look like.
pub(crate) struct Shape {
    pub(crate) scheme: &'static str,
    pub(crate) port: u16,
    /// What it is the URL of, with an article, for errors.
    pub(crate) what: &'static str,
    /// An example, for errors.
    pub(crate) example: &'static str,
    /// Whether it has a path in any case.
    pub(crate) needs_path: bool,
    /// The names of the parameters.
    pub(crate) parameters: &'static [&'static str],
}

impl Shape {
    /// # Errors
    /// `Invalid` if the text does not have this shape. The error shows no part of it but names of parameters.
    pub(crate) fn parse(&self, text: &str) -> Result<BrokerUrl> {
        let wrong = || invalid(format!("the URL of {} is {}", self.what, self.example));
        let rest = text.strip_prefix(self.scheme).and_then(|rest| rest.strip_prefix("://")).ok_or_else(wrong)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A `/`, `?` or `#` in a password that is not encoded ends the addresses before the `@`.
        if rest.contains('#') || query.contains(['@', '#']) {
            return Err(invalid("in a password write #, ?, / and @ as %23, %3F, %2F and %40"));
        }
        let split = rest.split_once('/').or((!self.needs_path).then_some((rest, "")));
        let (authority, path) = split.ok_or_else(wrong)?;
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let hosts = hosts.split(',').map(|host| self.with_port(host)).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(decode(user)?), Some(decode(password)?)),
            Some(Err(user)) => (Some(decode(user)?), None),
        };
        let (path, parameters) = (decode(path)?, self.parse_query(query)?);
        if parameters.contains_key("password-file") && (user.is_none() || password.is_some()) {
            return Err(invalid("password-file is the password of the user in the URL, which then has no other one"));
        }
        Ok(BrokerUrl { scheme: self.scheme, hosts, user, password, path, parameters })
    }

    fn with_port(&self, host: &str) -> Option<String> {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ' ']);
        match host.rsplit_once(':') {
            Some((name, _)) if has_port && is_host(name) => Some(host.to_owned()),
            // The colons of an IPv6 address are in brackets.
            Some(_) if host.ends_with(']') => Some(format!("{host}:{}", self.port)),
            None if is_host(host) => Some(format!("{host}:{}", self.port)),
            Some(_) | None => None,
        }
    }

    fn parse_query(&self, query: &str) -> Result<BTreeMap<String, String>> {
        let mut parameters = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let takes = self.parameters.join(", ");
            if !self.parameters.contains(&&*name) {
                return Err(invalid(format!("the URL of {} has no parameter `{name}`; it takes {takes}", self.what)));
            }
            if value.is_empty() {
                return Err(invalid(format!("the parameter `{name}` of the URL needs a value")));
            }
            if parameters.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(invalid(format!("the URL has the parameter `{name}` twice")));
            }
        }
        if parameters.contains_key("cert") != parameters.contains_key("key") {
            return Err(invalid("the URL has cert and key only together"));
        }
        Ok(parameters)
    }
}

impl BrokerUrl {
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// # Errors
    /// `Invalid` if the URL does not have it.
    pub(crate) fn required(&self, name: &str) -> Result<&str> {
        self.parameter(name).ok_or_else(|| invalid(format!("the URL needs the parameter `{name}`")))
    }

    /// Whether the connection is encrypted: `tls=yes`, or a certificate is named.
    ///
    /// # Errors
    /// `Invalid` if `tls` is neither `yes` nor `no`, or a certificate is named beside `tls=no`.
    pub(crate) fn uses_tls(&self) -> Result<bool> {
        let has_certificate = ["ca", "cert", "key"].iter().any(|name| self.parameters.contains_key(*name));
        match self.parameter("tls") {
            Some("yes") => Ok(true),
            None => Ok(has_certificate),
            Some("no") if !has_certificate => Ok(false),
            Some("no") => Err(invalid("ca, cert and key are for TLS: leave out tls=no")),
            Some(_) => Err(invalid("the parameter `tls` is yes or no")),
        }
    }

    pub(crate) fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// Whether there is a user without a password.
    #[cfg(feature = "kafka")]
    pub(crate) fn lacks_password(&self) -> bool {
        self.user.is_some() && self.password.is_none() && !self.parameters.contains_key("password-file")
    }

    /// The user and the password, which may be in a file.
    ///
    /// # Errors
    /// `Unusable` if the file cannot be read, or everybody can read it.
    pub(crate) fn credentials(&self) -> Result<Credentials> {
        let password = match self.parameter("password-file") {
            Some(path) => Some(read_secret(path)?),
            None => self.password.clone(),
        };
        Ok(Credentials { user: self.user.clone(), password })
    }
}

/// Hides the password, and a name that stands alone: it may be a token.
impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match (&self.user, &self.password) {
            (Some(user), Some(_)) => write!(f, "{user}:***@")?,
            (Some(_), None) => write!(f, "***@")?,
            (None, _) => {}
        }
        write!(f, "{}/{}", self.hosts.join(","), self.path)?;
        for (index, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| invalid("the URL is not UTF-8"))
}

/// Reads a file that the URL names.
pub(crate) fn read(path: &str) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|source| unusable(format!("cannot read {path}, which is named in the URL")).caused_by(source))
}

/// Reads a file with a secret, without the end of its last line. Refuses one that everybody can read, or that others
/// can write.
pub(crate) fn read_secret(path: &str) -> Result<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A file without metadata cannot be read either, and that error names the cause.
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        // The group may read it: secrets are mounted like this for a process that does not run as root.
        if mode & 0o027 != 0 {
            return Err(unusable(format!(
                "{path}, which is named in the URL, can be read by everybody or written by others; run \
                 `chmod 600 {path}`"
            )));
        }
    }
    Ok(read(path)?.trim_end_matches(['\r', '\n']).to_owned())
}

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

pub(crate) fn unusable(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

pub(crate) fn not_applied(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}

pub(crate) fn unknown(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        scheme: "nats",
        port: 4222,
        what: "a source",
        needs_path: true,
        example: "nats://host:4222/stream?durable=name",
        parameters: &["durable", "tls", "ca", "cert", "key", "password-file"],
    };

    #[test]
    fn a_url_has_several_addresses_and_a_default_port() {
        let url = SHAPE.parse("nats://a,b:77,[::1],[::1]:88/orders?durable=d").unwrap();
        assert_eq!(url.hosts, ["a:4222", "b:77", "[::1]:4222", "[::1]:88"]);
        assert_eq!((url.path.as_str(), url.parameter("durable")), ("orders", Some("d")));
        assert!(!url.uses_tls().unwrap());
    }

    #[test]
    fn a_password_and_a_lone_token_are_never_shown() {
        for text in ["nats://me:s%40cret@a/x", "nats://s%40cret@a/x"] {
            let url = SHAPE.parse(text).unwrap();
            assert!(!url.to_string().contains("cret"), "{url}");
            let credentials = url.credentials().unwrap();
            assert_eq!(credentials.password.or(credentials.user).as_deref(), Some("s@cret"));
        }
        for text in ["nats://me:s/cret@a/x", "nats://me:s?cret@a/x", "nats://me:s#cret@a/x", "nats://me:secret@/x"] {
            let error = SHAPE.parse(text).err().map(|error| error.to_string());
            assert!(error.as_ref().is_none_or(|error| !error.contains("cret")), "{text}: {error:?}");
        }
    }

    #[test]
    fn what_is_not_a_url_of_a_source_is_refused() {
        for text in [
            "kafka://a/x",
            "nats://a",
            "nats:///x",
            "nats://a:b/x",
            "nats://a/x?group=g",
            "nats://a/x?durable=",
            "nats://a/x?durable=d&durable=d",
            "nats://a/x?cert=c",
            "nats://me:s#cret@a/x",
            "nats://a/x?password-file=f",
            "nats://me:secret@a/x?password-file=f",
        ] {
            assert_eq!(SHAPE.parse(text).err().map(|error| error.kind()), Some(ErrorKind::Invalid), "{text}");
        }
        let url = SHAPE.parse("nats://a/x?ca=c&tls=no").unwrap();
        assert!(url.uses_tls().is_err());
    }

    #[test]
    fn a_password_file_that_everybody_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "secret\n").unwrap();
        let url = SHAPE.parse(&format!("nats://me@a/x?password-file={}", path.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(url.credentials().err().map(|error| error.kind()), Some(ErrorKind::Unusable));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(url.credentials().unwrap().password.as_deref(), Some("secret"));
    }
}
