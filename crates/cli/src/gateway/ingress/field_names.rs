//! The names of header fields that identify the caller or the key, and the names that imitate them.

use std::borrow::Cow;

use hapax::http::headers::{HOP_BY_HOP, IDEMPOTENCY_KEY, RESERVED_PREFIX};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST,
    HeaderName,
};

/// Fields with such names are set by the gateway only.
const FORWARDED_PREFIX: &str = "x-forwarded-";
const FORWARDED_FOR: &str = "x-forwarded-for";
const REAL_IP: &str = "x-real-ip";

/// How the gateway treats a field whose name has an underscore.
///
/// Services that run behind WSGI, CGI or FastCGI get `X_Account` and `X-Account` as the same variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnderscoreFields {
    /// The API does not get the field.
    #[default]
    Drop,
    /// The API gets the field, unless its name imitates another one.
    Forward,
}

/// The fields that identify the caller and the key. A `Connection` field must not name them, because a proxy would
/// remove them. No other name may imitate them, and no trailer may have their name.
#[derive(Clone, Debug)]
pub(crate) struct ProtectedFields {
    names: Vec<HeaderName>,
    underscores: UnderscoreFields,
    /// Whether one of the names has an underscore, so that a name with a hyphen may imitate it.
    has_underscore: bool,
}

impl ProtectedFields {
    /// The given fields, in addition to the ones that every gateway protects.
    pub(crate) fn with(more: impl IntoIterator<Item = HeaderName>) -> Self {
        let always = [AUTHORIZATION, COOKIE, HOST, IDEMPOTENCY_KEY];
        let names: Vec<_> = always.into_iter().chain(more).collect();
        let has_underscore = names.iter().any(|name| name.as_str().contains('_'));
        Self { names, underscores: UnderscoreFields::default(), has_underscore }
    }

    pub(crate) fn underscores(mut self, underscores: UnderscoreFields) -> Self {
        self.underscores = underscores;
        self
    }

    /// Whether a `Connection` field must not have this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|field| name.eq_ignore_ascii_case(field.as_str())) || has_prefix(name, RESERVED_PREFIX)
    }

    /// Whether a service may take a field of this name for a field that matters: they differ in underscores and hyphens
    /// only.
    pub(crate) fn is_imitated_by(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        if !(self.has_underscore || name.contains('_')) || self.names.iter().any(|field| field == name) {
            return false;
        }
        let hyphened = with_hyphens(name);
        let is_reserved = name.contains('_') && is_set_or_read_by_gateway(&hyphened);
        is_reserved || self.names.iter().any(|field| with_hyphens(field.as_str()) == hyphened)
    }

    /// Whether the API does not get fields of this name.
    pub(crate) fn is_dropped(&self, name: &HeaderName) -> bool {
        let is_kept = || self.underscores == UnderscoreFields::Forward || self.names.contains(name);
        name.as_str().contains('_') && !is_kept()
    }

    /// Whether a trailer must not have this name.
    pub(crate) fn is_never_trailer(&self, name: &HeaderName) -> bool {
        self.contains(name.as_str()) || is_of_proxies(name) || self.is_imitated_by(name) || self.is_dropped(name)
    }
}

/// Whether only a proxy in front may set the field: it says how a client reached the proxy. `X-Forwarded-For` is a list
/// to which each proxy appends.
pub(crate) fn is_for_proxies(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == FORWARDED || name == REAL_IP || (name.starts_with(FORWARDED_PREFIX) && name != FORWARDED_FOR)
}

/// Whether the gateway sets, appends to or removes this field about the client of a proxy.
pub(crate) fn is_of_proxies(name: &HeaderName) -> bool {
    is_for_proxies(name) || name.as_str() == FORWARDED_FOR
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn with_hyphens(name: &str) -> Cow<'_, str> {
    if name.contains('_') { name.replace('_', "-").into() } else { name.into() }
}

/// Whether the gateway sets the field of this name, or reads it to frame, compare or forward the request.
fn is_set_or_read_by_gateway(name: &str) -> bool {
    const READ: [HeaderName; 5] = [ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT];
    [RESERVED_PREFIX, FORWARDED_PREFIX].iter().any(|prefix| name.starts_with(prefix))
        || name == REAL_IP
        || READ.iter().chain(&HOP_BY_HOP).any(|field| field == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HeaderName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_imitates_another_one_if_only_underscores_and_hyphens_differ() {
        let fields = ProtectedFields::with([name("x-account"), name("my_key")]);
        for imitation in [
            "x_account",
            "X_Account",
            "my-key",
            "hapax_token",
            "hapax-a_b",
            "x_forwarded-for",
            "x_real_ip",
            "content_length",
            "accept_encoding",
            "Content_Encoding",
            "host_",
        ] {
            let is_imitation = imitation != "host_";
            assert_eq!(fields.is_imitated_by(&name(imitation)), is_imitation, "{imitation}");
        }
        for other in ["x-account", "my_key", "x-accounts", "x_accounts", "hapax-token", "content-length", "x_trace"] {
            assert!(!fields.is_imitated_by(&name(other)), "{other}");
        }
    }

    #[test]
    fn a_name_with_an_underscore_is_dropped_unless_it_is_configured() {
        let fields = ProtectedFields::with([name("my_key")]);
        let dropped = ["x_trace", "my_key", "x-trace"].map(|text| fields.is_dropped(&name(text)));
        assert_eq!(dropped, [true, false, false]);
        assert!(!fields.underscores(UnderscoreFields::Forward).is_dropped(&name("x_trace")));
    }
}
