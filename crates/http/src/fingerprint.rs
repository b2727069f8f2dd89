//! The parts of a request that count as its payload.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bytes::Bytes;
use hapax_core::{Fingerprint, Identity, Rule, canonical_json};
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::multipart::Multipart;

/// Computes the fingerprint of a request's payload. A request with the same key and another fingerprint is refused.
///
/// Two requests that a client may send as retries of each other must have the same fingerprint. Any two others should
/// differ. A changed rule needs a new number. Give the layer the old rule too, until no record made under it lives; see
/// [`IdempotencyLayer::older_fingerprint`](crate::IdempotencyLayer::older_fingerprint).
///
/// ```
/// use bytes::Bytes;
/// use hapax::{Fingerprint, Identity, Rule};
/// use hapax::http::MakeFingerprint;
/// use http::request::Parts;
///
/// /// Method, path and body. The query is left out: it carries a trace id that differs in each copy.
/// fn without_query(identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
///     identity.fingerprint(Rule(2), &[parts.method.as_str().as_bytes(), parts.uri.path().as_bytes(), body])
/// }
/// # fn is_one(_: impl MakeFingerprint) {}
/// # is_one(without_query);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not compute fingerprints",
    label = "does not implement `MakeFingerprint`",
    note = "pass a `RawFingerprint`, or a closure `|identity: &Identity, parts: &Parts, body: &Bytes| -> Fingerprint`"
)]
pub trait MakeFingerprint: Send + Sync + 'static {
    /// The fingerprint of a request with its whole body.
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint;

    /// The member `fingerprint` of the policy page.
    fn describe(&self) -> String {
        "application".into()
    }
}

impl<F> MakeFingerprint for F
where
    F: Fn(&Identity, &Parts, &Bytes) -> Fingerprint + Send + Sync + 'static,
{
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
        self(identity, parts, body)
    }
}

/// Method, host, path, query, content type and body. The number of this rule is 1.
///
/// The host is the authority of the target, or the `Host` field. Upper and lower case and the default port do not
/// count. The other parts are compared byte for byte. The framing of a body does not count: a chunked body is the same
/// payload. Its compression counts, because the bytes differ; the field `Content-Encoding` itself does not. The
/// boundary of a body in parts does not count, because a client that sends an upload again draws a new one. Its parts
/// count in their order, each with its head; every byte counts if some service may read the body in another way. A
/// nested router of axum removes its prefix from the path. With the feature `axum` the fingerprint covers the full
/// path, and a rule of your own finds it in `axum::extract::OriginalUri`.
///
/// Each method below changes what counts, which makes another rule: its fingerprints are those of no other rule. Give
/// the layer the rule before as the older one, or a retry that arrives after the change gets 422.
///
/// ```
/// use hapax::Identity;
/// use hapax::http::{MakeFingerprint, RawFingerprint};
/// use http::Request;
///
/// let of = |target: &str, body: &'static str| {
///     let (parts, ()) = Request::post(target).body(()).unwrap().into_parts();
///     RawFingerprint::default().fingerprint(&Identity::plain(), &parts, &body.into())
/// };
/// assert_eq!(of("/charges", "{\"a\":1}"), of("/charges", "{\"a\":1}"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/charges", "{ \"a\": 1 }"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/refunds", "{\"a\":1}"));
/// assert_eq!(of("http://API.example:80/charges", ""), of("http://api.example/charges", ""));
/// assert_ne!(of("http://other.example/charges", ""), of("http://api.example/charges", ""));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFingerprint {
    scheme: Option<Scheme>,
    is_without_host: bool,
    is_json_canonical: bool,
    /// The names of fields that count.
    headers: BTreeSet<String>,
    /// The names of parameters of the query that do not count.
    without_query: BTreeSet<String>,
}

impl RawFingerprint {
    /// The number of this rule. Use other numbers for your own rules.
    pub const RULE: Rule = Rule(1);

    /// The number of this rule [without the host](Self::without_host).
    pub const RULE_WITHOUT_HOST: Rule = Rule(255);

    /// The number of this rule after any other change. A description of the rule is then a part of the payload.
    pub const RULE_CHANGED: Rule = Rule(254);

    /// Leaves the host out, for a service whose clients may send a retry to another host.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self { is_without_host: true, ..self }
    }

    /// The scheme of requests whose target names none, as in HTTP/1. It decides which port is the default. Without it,
    /// the ports 80 and 443 both are.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        Self { scheme: Some(scheme), ..self }
    }

    /// Also compares the fields of this name, for instance one that chooses an account. All values count, in their
    /// order, and so does the absence of the field.
    ///
    /// ```
    /// use hapax::Identity;
    /// use hapax::http::{MakeFingerprint, RawFingerprint};
    /// use http::{HeaderName, Request};
    ///
    /// let rule = RawFingerprint::default().header(HeaderName::from_static("stripe-account"));
    /// let of = |account: &str| {
    ///     let request = Request::post("/charges").header("Stripe-Account", account).body(()).unwrap();
    ///     rule.fingerprint(&Identity::plain(), &request.into_parts().0, &"amount=5".into())
    /// };
    /// assert_ne!(of("acct_A"), of("acct_B"));
    /// ```
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        self.headers.insert(name.as_str().to_owned());
        self
    }

    /// Does not compare the parameters of the query that have this name, for instance the id of a trace. The name is
    /// compared as it is written: `trace%5Fid` is another parameter than `trace_id`. A parameter with a semicolon
    /// counts, because some services read two parameters there.
    #[must_use]
    pub fn without_query_parameter(mut self, name: impl Into<String>) -> Self {
        self.without_query.insert(name.into());
        self
    }

    /// Compares JSON by its value: neither white space nor the order of members counts, and `1.0` is `1`. It is JSON if
    /// the only `Content-Type` says so (`application/json`, or a type that ends in `+json`). A body that
    /// [`canonical_json`] refuses is compared byte for byte.
    #[must_use]
    pub fn json_canonical(self) -> Self {
        Self { is_json_canonical: true, ..self }
    }

    /// The parts of this rule, as `describe` lists them. Empty for the rule without any change.
    fn changes(&self) -> Vec<String> {
        let canonical = self.is_json_canonical.then(|| "json-canonical".to_owned());
        let host = self.is_without_host.then(|| "host:off".to_owned());
        let headers = self.headers.iter().map(|name| format!("header:{name}"));
        let without = self.without_query.iter().map(|name| format!("without-query:{name}"));
        canonical.into_iter().chain(host).chain(headers).chain(without).collect()
    }

    /// Whether anything but the host is changed.
    fn is_changed(&self) -> bool {
        self.is_json_canonical || !self.headers.is_empty() || !self.without_query.is_empty()
    }

    /// The host of a request, in lower case and without a default port. Empty if the request names none.
    fn host<'a>(&self, parts: &'a Parts) -> Cow<'a, [u8]> {
        let field = parts.headers.get(HOST);
        let Some(named) = parts.uri.authority().map(Authority::as_str).map(str::as_bytes).or(field.map(AsRef::as_ref))
        else {
            return Cow::default();
        };
        let host = Self::without_default_port(named, parts.uri.scheme().or(self.scheme.as_ref()));
        if host.iter().any(u8::is_ascii_uppercase) { host.to_ascii_lowercase().into() } else { host.into() }
    }

    fn without_default_port<'a>(host: &'a [u8], scheme: Option<&Scheme>) -> &'a [u8] {
        let is_scheme = |other| scheme.is_none_or(|scheme| *scheme == other);
        // An address of IPv6 has colons too, but ends in a bracket.
        let Some(colon) = host.iter().rposition(|byte| *byte == b':') else { return host };
        match &host[colon..] {
            b":" => &host[..colon],
            b":80" if is_scheme(Scheme::HTTP) => &host[..colon],
            b":443" if is_scheme(Scheme::HTTPS) => &host[..colon],
            _ => host,
        }
    }

    /// The query without the parameters that do not count.
    fn query<'a>(&self, uri: &'a Uri) -> Cow<'a, [u8]> {
        let query = uri.query().unwrap_or_default();
        if self.without_query.is_empty() {
            return query.as_bytes().into();
        }
        let counts = |parameter: &&str| {
            let name = parameter.split_once('=').map_or(*parameter, |(name, _)| name);
            parameter.contains(';') || !self.without_query.contains(name)
        };
        query.split('&').filter(counts).collect::<Vec<_>>().join("&").into_bytes().into()
    }

    /// The parts of the payload under a changed rule that the rule without changes does not have.
    fn added_parts(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        let mut parts = vec![self.changes().join(",").into_bytes()];
        for name in &self.headers {
            let values: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
            parts.push(values.len().to_string().into_bytes());
            parts.extend(values.into_iter().map(<[u8]>::to_vec));
        }
        parts
    }

    /// The canonical form of the body, if the rule compares it.
    fn canonical_body(&self, headers: &HeaderMap, body: &[u8]) -> Option<Vec<u8>> {
        (self.is_json_canonical && is_json(headers)).then(|| canonical_json(body)).flatten()
    }
}

impl MakeFingerprint for RawFingerprint {
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
        let uri = full_uri(parts);
        let query = self.query(uri);
        let host = if self.is_without_host { Cow::default() } else { self.host(parts) };
        let mut payload = vec![parts.method.as_str().as_bytes(), &*host, uri.path().as_bytes(), &*query];
        let canonical = self.canonical_body(&parts.headers, body);
        let multipart = Multipart::parse(&parts.headers, body);
        match &multipart {
            // The content type has a zero byte, which no field has: no other body gives the same list.
            Some(multipart) => {
                payload.extend([&[], &*multipart.content_type]);
                payload.extend(&multipart.parts);
            }
            // Each Content-Type field is a part of its own, so that a second one changes the fingerprint.
            None => {
                payload.push(canonical.as_deref().unwrap_or(body));
                payload.extend(parts.headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes));
            }
        }
        if !self.is_changed() {
            let rule = if self.is_without_host { Self::RULE_WITHOUT_HOST } else { Self::RULE };
            return identity.fingerprint(rule, &payload);
        }
        let mut added = self.added_parts(&parts.headers);
        added.push(if canonical.is_some() { b"canonical".to_vec() } else { b"raw".to_vec() });
        let all: Vec<&[u8]> = added.iter().map(Vec::as_slice).chain(payload).collect();
        identity.fingerprint(Self::RULE_CHANGED, &all)
    }

    /// `raw`, or the changes as `hapax gateway --older-fingerprint` reads them.
    fn describe(&self) -> String {
        let changes = self.changes().join(",");
        if changes.is_empty() { "raw".into() } else { changes }
    }
}

/// Whether the only content type is one of JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(CONTENT_TYPE).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return false };
    let essence = field.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    let essence = essence.trim_ascii().to_ascii_lowercase();
    essence == b"application/json" || essence.ends_with(b"+json")
}

/// The URI with the prefix of a nested router. Without the prefix, `/accounts/1/charges` and `/accounts/2/charges`
/// would be the same path.
#[cfg(feature = "axum")]
fn full_uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn full_uri(parts: &Parts) -> &Uri {
    &parts.uri
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(rule: &RawFingerprint, target: &str, fields: &[(&str, &str)], body: &str) -> Fingerprint {
        let request = fields.iter().fold(Request::post(target), |request, (name, value)| request.header(*name, *value));
        let (parts, ()) = request.body(()).unwrap().into_parts();
        rule.fingerprint(&Identity::plain(), &parts, &Bytes::copy_from_slice(body.as_bytes()))
    }

    fn name(text: &str) -> HeaderName {
        text.parse().unwrap()
    }

    #[test]
    fn each_value_of_a_compared_field_counts_and_so_does_its_absence() {
        let rule = RawFingerprint::default().header(name("account")).header(name("version"));
        let lists: [&[(&str, &str)]; 7] = [
            &[],
            &[("account", "")],
            &[("account", "a")],
            &[("account", "a"), ("account", "b")],
            &[("account", "b"), ("account", "a")],
            &[("account", "a"), ("version", "b")],
            &[("version", "a")],
        ];
        let mut found: Vec<_> = lists.iter().map(|fields| of(&rule, "/", fields, "").to_string()).collect();
        assert_eq!(found[2], of(&rule, "/", &[("account", "a"), ("other", "x")], "").to_string());
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), lists.len());
        let same = RawFingerprint::default().header(name("version")).header(name("account"));
        assert_eq!(of(&rule, "/", &[("account", "a")], ""), of(&same, "/", &[("account", "a")], ""));
    }

    #[test]
    fn named_parameters_of_the_query_do_not_count() {
        let rule = RawFingerprint::default().without_query_parameter("t").without_query_parameter("u");
        let plain = of(&rule, "/?a=1&b=2", &[], "");
        for target in ["/?a=1&t=9&b=2", "/?t=1&u&a=1&b=2&t=", "/?a=1&b=2&t"] {
            assert_eq!(of(&rule, target, &[], ""), plain, "{target}");
        }
        for target in ["/?b=2&a=1", "/?a=1&b=2&T=1", "/?a=1&b=2&tt=1", "/?a=1&b=2&t=1;a=2", "/?a=1&b=2&%74=1", "/?a=1"]
        {
            assert_ne!(of(&rule, target, &[], ""), plain, "{target}");
        }
        assert_eq!(of(&rule, "/?t=1", &[], ""), of(&rule, "/", &[], ""));
    }

    #[test]
    fn canonical_json_counts_by_its_value_if_the_type_says_json() {
        let rule = RawFingerprint::default().json_canonical();
        let json = |content_type: &str, body: &str| of(&rule, "/", &[("content-type", content_type)], body);
        let plain = json("application/json", "{\"a\":1,\"b\":9007199254740993}");
        assert_eq!(json("application/json", "{ \"b\": 9007199254740993, \"a\": 1.0 }"), plain);
        assert_ne!(json("application/json", "{ \"b\": 9007199254740992, \"a\": 1 }"), plain);
        for (content_type, are_equal) in [
            ("application/json; charset=utf-8", true),
            ("Application/Problem+JSON", true),
            ("text/plain", false),
            ("application/jsonx", false),
        ] {
            let is_equal = json(content_type, "{ \"a\": 1 }") == json(content_type, "{\"a\":1}");
            assert_eq!(is_equal, are_equal, "{content_type}");
        }
        let twice = [("content-type", "application/json"), ("content-type", "application/json")];
        assert_ne!(of(&rule, "/", &twice, "[ ]"), of(&rule, "/", &twice, "[]"));
        assert_ne!(json("application/json", "{\"a\":1,\"a\":2}"), json("application/json", "{\"a\":2}"));
    }

    #[test]
    fn each_change_is_a_rule_of_its_own() {
        let rules = [
            RawFingerprint::default(),
            RawFingerprint::default().without_host(),
            RawFingerprint::default().json_canonical(),
            RawFingerprint::default().json_canonical().without_host(),
            RawFingerprint::default().header(name("a")),
            RawFingerprint::default().header(name("b")),
            RawFingerprint::default().without_query_parameter("a"),
            RawFingerprint::default().without_query_parameter("a,header:b"),
        ];
        let mut found: Vec<_> = rules.iter().map(|rule| of(rule, "/", &[], "").to_string()).collect();
        assert!(found[0].starts_with("1:") && found[1].starts_with("255:") && found[2].starts_with("254:"));
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), rules.len());
        let all = rules[3].clone().header(name("b")).without_query_parameter("t");
        assert_eq!(all.describe(), "json-canonical,host:off,header:b,without-query:t");
        assert_eq!(rules[0].describe(), "raw");
    }
}
