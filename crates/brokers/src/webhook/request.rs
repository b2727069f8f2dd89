//! From an event to a request. Pure.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::Headers;
use hapax_core::outbox::OutgoingEvent;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::webhook::WebhookEndpoint;
use crate::webhook::secrets::Signer;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CE_ID: HeaderName = HeaderName::from_static("ce-id");
const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
const CE_SPECVERSION: HeaderName = HeaderName::from_static("ce-specversion");
const CE_TIME: HeaderName = HeaderName::from_static("ce-time");
const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");

/// Headers of an event that pass to every receiver, beside CloudEvents attributes.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// Header fields that only this sink or the connection sets: these, and all that begin like this.
const RESERVED: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
const RESERVED_STARTS: [&str; 4] = ["ce-", "hapax-", "proxy-", "webhook-"];

/// The characters of a CloudEvents attribute that a header field cannot carry as they are.
const NOT_IN_ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// What the requests of one endpoint have in common.
pub(super) struct RequestTemplate {
    uri: Uri,
    signer: Signer,
    headers: HeaderMap,
    forwarded: Vec<HeaderName>,
}

impl RequestTemplate {
    /// # Errors
    /// What is wrong with the secrets or the headers of the endpoint.
    pub(super) fn new(uri: Uri, endpoint: &WebhookEndpoint) -> Result<Self, String> {
        let signer = Signer::new(&endpoint.secrets)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &endpoint.headers {
            let mut value = HeaderValue::try_from(value).map_err(|_| format!("the value of the header `{name}`"))?;
            value.set_sensitive(true);
            headers.append(own_name(name)?, value);
        }
        let forwarded = endpoint.forwarded.iter().map(|name| own_name(name)).collect::<Result<_, _>>()?;
        Ok(Self { uri, signer, headers, forwarded })
    }

    /// The request that carries the event, signed for this time.
    pub(super) fn fill(&self, event: &OutgoingEvent, now: Timestamp) -> Request<Bytes> {
        let mut request = Request::new(event.payload.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let fields = request.headers_mut();
        self.copy_headers(&event.headers, fields);
        fields.extend(self.headers.clone());
        describe_event(event, fields);
        let (id, seconds) = (event.id.to_string(), now.seconds());
        let signature = self.signer.sign(&id, seconds, &event.payload);
        fields.insert(WEBHOOK_SIGNATURE, HeaderValue::try_from(signature).expect("base64 is a valid field value"));
        fields.insert(WEBHOOK_TIMESTAMP, seconds.into());
        let id = HeaderValue::try_from(id).expect("a UUID is a valid field value");
        fields.insert(IDEMPOTENCY_KEY, id.clone());
        fields.insert(WEBHOOK_ID, id);
        // A POST without a body has its length too.
        fields.insert(CONTENT_LENGTH, event.payload.len().into());
        fields.insert(USER_AGENT, HeaderValue::from_static(concat!("hapax/", env!("CARGO_PKG_VERSION"))));
        request
    }

    /// Copies the headers of an event that a receiver gets. A value that HTTP cannot carry is left out.
    fn copy_headers(&self, headers: &Headers, fields: &mut HeaderMap) {
        for (name, value) in headers.iter() {
            let name = name.to_ascii_lowercase();
            if let Some(attribute) = name.strip_prefix("ce-").or_else(|| name.strip_prefix("ce_")) {
                let name = HeaderName::try_from(format!("ce-{attribute}"));
                if let (Ok(name), Ok(value)) = (name, str::from_utf8(value)) {
                    fields.insert(name, attribute_value(value));
                }
                continue;
            }
            let is_known = name == CONTENT_TYPE.as_str() || TRACE.contains(&&*name);
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value))
                && (is_known || self.forwarded.contains(&name))
            {
                fields.append(name, value);
            }
        }
    }
}

/// The CloudEvents attributes and the media type: those of the event go before headers of the same name.
fn describe_event(event: &OutgoingEvent, fields: &mut HeaderMap) {
    fields.insert(CE_SPECVERSION, HeaderValue::from_static("1.0"));
    fields.insert(CE_ID, attribute_value(&event.id.to_string()));
    let default_source = format!("/{}", event.namespace);
    for (name, given, default) in
        [(CE_TYPE, &event.kind, event.topic.as_str()), (CE_SOURCE, &event.source, default_source.as_str())]
    {
        match given.as_deref().filter(|given| !given.is_empty()) {
            Some(given) => fields.insert(name, attribute_value(given)),
            None => (!fields.contains_key(&name)).then(|| fields.insert(name, attribute_value(default))).flatten(),
        };
    }
    if event.created_at > Timestamp::default() {
        let created = SystemTime::UNIX_EPOCH + Duration::from_micros(event.created_at.0);
        fields.insert(CE_TIME, attribute_value(&humantime::format_rfc3339_millis(created).to_string()));
    }
    match event.content_type.as_deref().map(HeaderValue::try_from) {
        Some(Ok(content_type)) => {
            fields.insert(CONTENT_TYPE, content_type);
        }
        Some(Err(_)) | None => {
            fields.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
        }
    }
}

fn attribute_value(text: &str) -> HeaderValue {
    let encoded = utf8_percent_encode(text, NOT_IN_ATTRIBUTE).to_string();
    HeaderValue::try_from(encoded).expect("an encoded attribute is a valid field value")
}

/// The name of a header that the user may set or forward.
fn own_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::try_from(name).map_err(|_| format!("`{name}` is not the name of a header"))?;
    let is_reserved = RESERVED.contains(&parsed.as_str())
        || RESERVED_STARTS.iter().any(|start| parsed.as_str().starts_with(start))
        || TRACE.contains(&parsed.as_str());
    if is_reserved { Err(format!("the header `{name}` is set by the relay itself")) } else { Ok(parsed) }
}

#[cfg(test)]
mod tests {
    use hapax_core::EventId;

    use super::*;
    use crate::webhook::WebhookSecret;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    fn endpoint() -> WebhookEndpoint {
        let mut endpoint = WebhookEndpoint::new("https://shop.example/hook");
        endpoint.secrets = vec![WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
        endpoint
    }

    fn template(endpoint: &WebhookEndpoint) -> RequestTemplate {
        RequestTemplate::new(Uri::from_static("https://shop.example/hook"), endpoint).unwrap()
    }

    fn field<'a>(request: &'a Request<Bytes>, name: &str) -> Vec<&'a str> {
        request.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn a_later_try_has_the_same_id_and_a_new_timestamp_and_signature() {
        let template = template(&endpoint());
        let event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "orders", "{}");
        let (first, later) = (template.fill(&event, NOW), template.fill(&event, NOW.plus(Duration::from_secs(5))));
        for name in ["webhook-id", "idempotency-key", "ce-id"] {
            assert_eq!(field(&first, name), [event.id.to_string()], "{name}");
            assert_eq!(field(&later, name), [event.id.to_string()], "{name}");
        }
        assert_eq!(
            (field(&first, "webhook-timestamp"), field(&later, "webhook-timestamp")),
            (vec!["1700000000"], vec!["1700000005"])
        );
        assert_ne!(field(&first, "webhook-signature"), field(&later, "webhook-signature"));
        assert_eq!((first.method(), first.body()), (&Method::POST, &Bytes::from_static(b"{}")));
    }

    #[test]
    fn the_event_the_trace_and_the_listed_headers_pass_and_no_others() {
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "orders", "{}");
        event.kind = Some("com.example.größe \"x\"".into());
        event.namespace = "shop".into();
        event.content_type = Some("application/json".into());
        event.created_at = NOW;
        let headers = [
            ("traceparent", "00-1-2-01"),
            ("ce_subject", "o 7%"),
            ("CE-Type", "overruled"),
            ("X-Region", "north"),
            ("Authorization", "Bearer of the service"),
            ("host", "elsewhere"),
            ("webhook-id", "forged"),
            ("content-length", "1"),
            ("x-line", "a\nb"),
        ];
        event.headers = headers.into_iter().collect();
        let mut endpoint = endpoint();
        endpoint.forwarded = vec!["x-region".into()];
        endpoint.headers = vec![("Authorization".into(), "Bearer of the endpoint".into())];
        let request = template(&endpoint).fill(&event, NOW);
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "authorization",
            "ce-id",
            "ce-source",
            "ce-specversion",
            "ce-subject",
            "ce-time",
            "ce-type",
            "content-length",
            "content-type",
            "idempotency-key",
            "traceparent",
            "user-agent",
            "webhook-id",
            "webhook-signature",
            "webhook-timestamp",
            "x-region",
        ];
        assert_eq!(names, expected);
        for (name, value) in [
            ("authorization", "Bearer of the endpoint"),
            ("ce-source", "/shop"),
            ("ce-specversion", "1.0"),
            ("ce-subject", "o%207%25"),
            ("ce-time", "2023-11-14T22:13:20.000Z"),
            ("ce-type", "com.example.gr%C3%B6%C3%9Fe%20%22x%22"),
            ("content-type", "application/json"),
            ("webhook-id", event.id.to_string().as_str()),
        ] {
            assert_eq!(field(&request, name), [value], "{name}");
        }
    }

    #[test]
    fn a_header_that_the_relay_sets_cannot_be_configured() {
        for name in
            ["Host", "webhook-signature", "Idempotency-Key", "ce-id", "Transfer-Encoding", "proxy-authorization", "a b"]
        {
            let mut set = endpoint();
            set.headers = vec![(name.into(), "x".into())];
            let mut forwarded = endpoint();
            forwarded.forwarded = vec![name.into()];
            for endpoint in [set, forwarded] {
                let error = RequestTemplate::new(Uri::from_static("https://shop.example/"), &endpoint).err().unwrap();
                assert!(error.contains(name), "{error}");
            }
        }
        let mut wrong = endpoint();
        wrong.headers = vec![("authorization".into(), "secret\nx".into())];
        let error = RequestTemplate::new(Uri::from_static("https://shop.example/"), &wrong).err().unwrap();
        assert!(error.contains("authorization") && !error.contains("secret"), "{error}");
    }
}
