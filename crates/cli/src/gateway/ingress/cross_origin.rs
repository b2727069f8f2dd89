//! The fields that let pages of other origins read a response (CORS, section 3.2 of the Fetch standard).

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hapax::gate::Provenance;
use hapax::http::headers::{HAPAX_RECORDED, HAPAX_UNRECORDED, IDEMPOTENCY_KEY_EXPIRES, IDEMPOTENT_REPLAYED};
use hapax::http::{ProtectedOutcome, RequestSummary};
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

/// The fields of a response that a page needs beside those that it may read anyway.
const EXPOSED: [HeaderName; 5] =
    [IDEMPOTENT_REPLAYED, IDEMPOTENCY_KEY_EXPIRES, RETRY_AFTER, HAPAX_RECORDED, HAPAX_UNRECORDED];

/// How long a browser may remember the answer to a preflight, in seconds.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

const ANY: HeaderValue = HeaderValue::from_static("*");

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedOrigins {
    /// Every origin, without cookies and other credentials of the browser.
    Any,
    /// These origins, with credentials.
    Listed(Vec<HeaderValue>),
}

/// The rights of pages of other origins.
#[derive(Debug, Default)]
pub(crate) struct CrossOrigin {
    /// None: the gateway adds nothing, and the API answers preflights.
    allowed: Option<AllowedOrigins>,
    /// Whether the log says that the API has such fields and the gateway has none.
    has_reported: AtomicBool,
}

impl CrossOrigin {
    pub(crate) fn new(allowed: Option<AllowedOrigins>) -> Self {
        Self { allowed, has_reported: AtomicBool::new(false) }
    }

    /// The value of `Access-Control-Allow-Origin` for this request. None if it is from no page of a named origin. Where
    /// every origin may read, a request without an origin gets it too: a cache may give its response to a page.
    pub(crate) fn grant(&self, request: &HeaderMap) -> Option<HeaderValue> {
        match self.allowed.as_ref()? {
            AllowedOrigins::Any => Some(ANY),
            AllowedOrigins::Listed(origins) => request.get(ORIGIN).filter(|origin| origins.contains(origin)).cloned(),
        }
    }

    /// The answer to a preflight, without [`apply`](Self::apply). None for every other request, and if the API answers
    /// preflights.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Bytes>> {
        let asked = request.headers();
        let method = asked.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        let is_preflight = request.method() == Method::OPTIONS && asked.contains_key(ORIGIN);
        if !is_preflight || self.allowed.is_none() {
            return None;
        }
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let fields = response.headers_mut();
        if self.grant(asked).is_some() {
            fields.insert(ACCESS_CONTROL_ALLOW_METHODS, method.clone());
            if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
            fields.insert(ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        }
        for name in [ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_REQUEST_HEADERS] {
            fields.append(VARY, name.into());
        }
        Some(response)
    }

    /// Lets the page read the response, whatever the API says about it: a page that may read replays may read the first
    /// answer too. Without a grant, the fields that the API has set stay, unless the response is a replay: then they
    /// belong to the page that sent the first copy.
    pub(crate) fn apply<B>(&self, grant: Option<&HeaderValue>, response: &mut Response<B>) {
        let is_replay = is_replay(response);
        let fields = response.headers_mut();
        if grant.is_none() && !is_replay {
            self.report(fields);
        }
        let Some(allowed) = &self.allowed else { return };
        if grant.is_some() || is_replay {
            fields.remove(ACCESS_CONTROL_ALLOW_ORIGIN);
            fields.remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
        }
        let is_listed = matches!(allowed, AllowedOrigins::Listed(_));
        if is_listed && !has_item(fields, VARY, ORIGIN.as_str()) {
            // Without it, a cache could give the response to a page that may read it, and has no field for that page.
            fields.append(VARY, ORIGIN.into());
        }
        let Some(grant) = grant else { return };
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, grant.clone());
        if is_listed {
            fields.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        expose(fields);
    }

    /// Logs the first answer of the API that a page may read, if the gateway lets it read nothing else.
    fn report(&self, fields: &HeaderMap) {
        if fields.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) && !self.has_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the API lets pages of other origins read its answers, but they can read neither replays nor problems \
                 of the gateway; name these origins with --cors-origin"
            );
        }
    }
}

/// Whether the response is a recorded answer, and not the one that the API has just given.
fn is_replay<B>(response: &Response<B>) -> bool {
    let summary = response.extensions().get::<RequestSummary>();
    summary.is_some_and(|summary| match summary.outcome {
        ProtectedOutcome::Answered(Provenance::Replayed | Provenance::Canonical) => true,
        ProtectedOutcome::Answered(Provenance::Fresh)
        | ProtectedOutcome::NotApplied
        | ProtectedOutcome::Unknown
        | ProtectedOutcome::Problem(_) => false,
    })
}

/// Adds our names to those that the API exposes, as one field.
fn expose(fields: &mut HeaderMap) {
    let theirs = fields.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().filter_map(|value| value.to_str().ok());
    let mut names: Vec<&str> = theirs.flat_map(|value| value.split(',')).map(str::trim).collect();
    let is_known = |own: &HeaderName| names.iter().any(|name| name.eq_ignore_ascii_case(own.as_str()));
    let missing: Vec<HeaderName> = EXPOSED.into_iter().filter(|own| !is_known(own)).collect();
    names.extend(missing.iter().map(HeaderName::as_str));
    if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
        fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, value);
    }
}

/// Whether a list of names, such as `Vary`, has this one.
fn has_item(fields: &HeaderMap, list: HeaderName, name: &str) -> bool {
    let values = fields.get_all(list).iter().filter_map(|value| value.to_str().ok());
    let mut items = values.flat_map(|value| value.split(',')).map(str::trim);
    items.any(|item| item == "*" || item.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = "https://shop.example";

    fn listed() -> CrossOrigin {
        CrossOrigin::new(Some(AllowedOrigins::Listed(vec![HeaderValue::from_static(SHOP)])))
    }

    fn any() -> CrossOrigin {
        CrossOrigin::new(Some(AllowedOrigins::Any))
    }

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    /// The fields of the response to a page of this origin, each with its values, after the API has set `theirs`.
    fn applied(
        rules: &CrossOrigin,
        origin: Option<&'static str>,
        theirs: &[(&'static str, &'static str)],
        provenance: Option<Provenance>,
    ) -> HeaderMap {
        let request = headers(origin.map(|origin| ("origin", origin)).as_slice());
        let mut response = Response::new(());
        *response.headers_mut() = headers(theirs);
        if let Some(provenance) = provenance {
            let outcome = ProtectedOutcome::Answered(provenance);
            response.extensions_mut().insert(RequestSummary { record_key: None, outcome });
        }
        rules.apply(rules.grant(&request).as_ref(), &mut response);
        response.headers().clone()
    }

    #[test]
    fn a_page_of_a_listed_origin_can_read_a_response() {
        let fields = applied(&listed(), Some(SHOP), &[], None);
        assert_eq!(fields[ACCESS_CONTROL_ALLOW_ORIGIN], SHOP);
        assert_eq!(fields[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert_eq!(fields[VARY], "origin");
        let exposed = fields[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap();
        assert_eq!(
            exposed,
            "idempotent-replayed, idempotency-key-expires, retry-after, hapax-recorded, hapax-unrecorded"
        );
    }

    #[test]
    fn any_origin_can_read_without_credentials() {
        let theirs = [("access-control-allow-origin", SHOP), ("access-control-allow-credentials", "true")];
        // A cache may give the response to a request without an origin to a page.
        for (origin, theirs) in [(Some(SHOP), &[][..]), (None, &[]), (Some(SHOP), &theirs)] {
            let fields = applied(&any(), origin, theirs, None);
            assert_eq!(fields[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
            assert!(!fields.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS) && !fields.contains_key(VARY));
        }
    }

    #[test]
    fn a_page_of_another_origin_gets_no_field() {
        for origin in [None, Some("https://evil.example"), Some("https://shop.example.evil"), Some("null")] {
            let fields = applied(&listed(), origin, &[], None);
            assert_eq!(fields.keys().collect::<Vec<_>>(), [&VARY], "{origin:?}");
        }
        assert!(applied(&CrossOrigin::default(), Some(SHOP), &[], None).is_empty());
    }

    #[test]
    fn a_page_of_a_named_origin_reads_the_first_answer_too() {
        let theirs = [
            ("access-control-allow-origin", "*"),
            ("access-control-expose-headers", "X-Request-Id, Retry-After"),
            ("vary", "Accept, Origin"),
        ];
        for provenance in [None, Some(Provenance::Fresh)] {
            let fields = applied(&listed(), Some(SHOP), &theirs, provenance);
            assert_eq!(fields.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter().collect::<Vec<_>>(), [SHOP]);
            assert_eq!(fields[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
            assert_eq!(fields.get_all(VARY).iter().collect::<Vec<_>>(), ["Accept, Origin"]);
            let exposed = fields.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().collect::<Vec<_>>();
            let ours = "idempotent-replayed, idempotency-key-expires, hapax-recorded, hapax-unrecorded";
            assert_eq!(exposed, [&format!("X-Request-Id, Retry-After, {ours}")]);
            let fields = applied(&listed(), Some("https://other.example"), &theirs, provenance);
            assert_eq!(fields[ACCESS_CONTROL_ALLOW_ORIGIN], "*", "without a grant, the API decides");
        }
    }

    #[test]
    fn a_replay_has_the_origin_of_its_own_request() {
        let theirs =
            [("access-control-allow-origin", "https://first.example"), ("access-control-allow-credentials", "true")];
        for provenance in [Provenance::Replayed, Provenance::Canonical] {
            let fields = applied(&listed(), Some(SHOP), &theirs, Some(provenance));
            assert_eq!(fields[ACCESS_CONTROL_ALLOW_ORIGIN], SHOP);
            let fields = applied(&listed(), None, &theirs, Some(provenance));
            assert!(!fields.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN), "{fields:?}");
            let fields = applied(&any(), Some(SHOP), &theirs, Some(provenance));
            assert!(!fields.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS), "{fields:?}");
        }
    }

    #[test]
    fn a_preflight_is_answered_if_origins_are_allowed() {
        let preflight = |rules: &CrossOrigin, method: Method, fields: &[(&'static str, &'static str)]| {
            let mut request = Request::new(());
            *request.method_mut() = method;
            *request.headers_mut() = headers(fields);
            rules.preflight(&request)
        };
        let asked = [
            ("origin", SHOP),
            ("access-control-request-method", "PATCH"),
            ("access-control-request-headers", "authorization,idempotency-key"),
        ];
        for rules in [listed(), any()] {
            let response = preflight(&rules, Method::OPTIONS, &asked).unwrap();
            assert_eq!(response.status(), StatusCode::NO_CONTENT);
            assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_METHODS], "PATCH");
            assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_HEADERS], "authorization,idempotency-key");
        }
        let other = [("origin", "https://evil.example"), asked[1], asked[2]];
        let refused = preflight(&listed(), Method::OPTIONS, &other).unwrap();
        assert_eq!(refused.headers().keys().collect::<Vec<_>>(), [&VARY]);
        assert!(preflight(&CrossOrigin::default(), Method::OPTIONS, &asked).is_none(), "the API answers it");
        assert!(preflight(&listed(), Method::POST, &asked).is_none());
        assert!(preflight(&listed(), Method::OPTIONS, &asked[..1]).is_none(), "it asks for the options");
    }
}
