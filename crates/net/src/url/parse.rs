use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use hapax_core::{Error, Result};
use percent_encoding::percent_decode_str;

use super::{Host, HostCount, Login, ServerUrl, UrlShape, invalid};

/// The name and the password before the hosts.
type WrittenLogin = (Option<String>, Option<String>);

impl UrlShape {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid` if the text does not have this shape. The error shows no part of it but names of parameters, and the
    /// value of a parameter that is wrong.
    pub fn parse(&self, text: &str) -> Result<ServerUrl> {
        let (scheme, rest) = self.scheme(text.trim())?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        // A `/`, `?` or `#` in a password that is not encoded ends the hosts before the `@`.
        if authority.contains('#') || rest.contains(['@', '#']) {
            return Err(not_encoded());
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let encoded_path = match path.strip_prefix('/') {
            None if self.needs_path => return Err(self.wrong()),
            path => path.unwrap_or_default(),
        };
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let hosts = self.hosts(hosts)?;
        if login.is_some() && hosts.is_empty() {
            return Err(self.wrong());
        }
        let parameters = self.query(query)?;
        let (user, password) = self.login(login, &parameters)?;
        let (path, encoded_path) = (decode(encoded_path)?, encoded_path.to_owned());
        Ok(ServerUrl { scheme, hosts, user, password, login: self.login, encoded_path, path, parameters })
    }

    /// The error for a text that does not have this shape.
    pub fn wrong(&self) -> Error {
        invalid(format!("the URL of {} is {}", self.what, self.example))
    }

    fn scheme<'a>(&self, text: &'a str) -> Result<(&'static str, &'a str)> {
        let (written, rest) = text.split_once("://").ok_or_else(|| self.wrong())?;
        let scheme = self.schemes.iter().find(|scheme| written.eq_ignore_ascii_case(scheme));
        scheme.map(|scheme| (*scheme, rest)).ok_or_else(|| self.wrong())
    }

    fn hosts(&self, text: &str) -> Result<Vec<Host>> {
        match self.hosts {
            HostCount::OneOrSocket if text.is_empty() => return Ok(Vec::new()),
            HostCount::OneOrSocket if text.contains(',') => {
                return Err(invalid(format!("the URL of {} has only one host", self.what)));
            }
            HostCount::OneOrSocket | HostCount::Several => {}
        }
        text.split(',').map(|host| self.host(host).ok_or_else(|| self.wrong())).collect()
    }

    fn host(&self, text: &str) -> Option<Host> {
        // The colons of an IPv6 address are in brackets. A `%` ends the address and begins the name of an interface.
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            address.split('%').next()?.parse::<Ipv6Addr>().ok()?;
            (address, port.strip_prefix(':').or_else(|| port.is_empty().then_some(""))?)
        } else {
            let (name, port) = text.split_once(':').unwrap_or((text, ""));
            let is_name = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c);
            if name.is_empty() || !name.chars().all(is_name) {
                return None;
            }
            (name, port)
        };
        let port = if port.is_empty() { self.port } else { port.parse().ok()? };
        Some(Host { name: name.to_owned(), port })
    }

    fn query(&self, query: &str) -> Result<BTreeMap<String, String>> {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let is_known = self.parameters.contains(&&*name);
            // The end of a password that is not encoded must not be shown.
            if !is_known && value.is_empty() || name.contains(['@', ':', '/']) {
                return Err(not_encoded());
            }
            if !is_known {
                let takes = self.parameters.join(", ");
                return Err(invalid(format!("the URL of {} has no parameter `{name}`; it takes {takes}", self.what)));
            }
            if value.is_empty() {
                return Err(invalid(format!("the parameter `{name}` of the URL needs a value")));
            }
            let name = name.into_owned();
            if let Some(_earlier) = parameters.insert(name.clone(), value.into_owned()) {
                return Err(invalid(format!("the URL has the parameter `{name}` only once")));
            }
        }
        if parameters.contains_key("cert") != parameters.contains_key("key") {
            return Err(invalid("the URL has cert and key only together"));
        }
        Ok(parameters)
    }

    fn login(&self, login: Option<&str>, parameters: &BTreeMap<String, String>) -> Result<WrittenLogin> {
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(user), Some(decode(password)?)),
            Some(Err(user)) => (Some(user), None),
        };
        let user = user.filter(|user| !user.is_empty()).map(decode).transpose()?;
        let has_file = parameters.contains_key("password-file");
        if has_file && password.is_some() {
            return Err(invalid("the URL has a password or a password-file, not both"));
        }
        match self.login {
            Login::AnyUser => {}
            Login::NamedUser | Login::NamedUserOrToken if user.is_none() && (has_file || password.is_some()) => {
                return Err(invalid("a password belongs to a user: write the name of the user in the URL"));
            }
            Login::NamedUser | Login::NamedUserOrToken => {}
        }
        Ok((user, password))
    }
}

fn not_encoded() -> Error {
    invalid(
        "a URL has no #, and a value for each parameter; in a password write #, ?, / and @ as %23, %3F, %2F and %40",
    )
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8().map(Cow::into_owned);
    decoded.map_err(|_| invalid("a part of the URL is not UTF-8; %XX stands for one byte of it"))
}
