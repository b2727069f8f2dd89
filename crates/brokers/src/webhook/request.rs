//! From an event to a request. Pure.

use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::Headers;
use hapax_core::outbox::OutgoingEvent;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

use crate::webhook::WebhookEndpoint;
use crate::webhook::secrets::Signer;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// How the names of CloudEvents attributes begin.
const CLOUD_EVENT: &str = "ce-";

/// Headers of an event that pass to every receiver, beside CloudEvents attributes.
const KNOWN: [&str; 4] = ["content-type", "idempotency-key", "traceparent", "tracestate"];

/// How the headers begin that say why a message is dead. They pass to every receiver.
const DEAD_LETTER: &str = "hapax-dead-";

/// Further header fields that only this sink or the connection sets: these, and all that begin like this.
const RESERVED: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
const RESERVED_STARTS: [&str; 4] = ["ce-", "hapax-", "proxy-", "webhook-"];

/// So many header fields of an event pass at most. A map of header fields panics beyond 24,576, and the others need
/// room, too. No server takes nearly as many.
const MAX_FIELDS: usize = 10_000;

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
    ///
    /// # Errors
    /// Why no request can carry the event.
    pub(super) fn fill(&self, event: &OutgoingEvent, now: Timestamp) -> Result<Request<Bytes>, String> {
        let mut request = Request::new(event.payload.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let fields = request.headers_mut();
        self.copy_headers(&event.published_headers(CLOUD_EVENT), fields)?;
        fields.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
        fields.extend(self.headers.clone());
        let (id, seconds) = (event.id.to_string(), now.seconds());
        let signature = self.signer.sign(&id, seconds, &event.payload);
        fields.insert(WEBHOOK_SIGNATURE, HeaderValue::try_from(signature).expect("base64 is a valid field value"));
        fields.insert(WEBHOOK_TIMESTAMP, seconds.into());
        fields.insert(WEBHOOK_ID, HeaderValue::try_from(id).expect("a UUID is a valid field value"));
        // A POST without a body has its length too.
        fields.insert(CONTENT_LENGTH, event.payload.len().into());
        fields.insert(USER_AGENT, HeaderValue::from_static(concat!("hapax/", env!("CARGO_PKG_VERSION"))));
        Ok(request)
    }

    /// Copies the headers of an event that a receiver gets. A value that HTTP cannot carry is left out.
    fn copy_headers(&self, headers: &Headers, fields: &mut HeaderMap) -> Result<(), String> {
        for (name, value) in headers.iter() {
            let mut name = name.to_ascii_lowercase();
            if let Some(attribute) = name.strip_prefix("ce_") {
                name = format!("{CLOUD_EVENT}{attribute}");
            }
            let is_known = name.starts_with(CLOUD_EVENT) || name.starts_with(DEAD_LETTER) || KNOWN.contains(&&*name);
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value))
                && (is_known || self.forwarded.contains(&name))
            {
                if fields.len() >= MAX_FIELDS {
                    return Err(format!(
                        "the event has more than {MAX_FIELDS} headers; drop it, and emit it with fewer"
                    ));
                }
                fields.append(name, value);
            }
        }
        Ok(())
    }
}

/// The name of a header that the user may set or forward.
fn own_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::try_from(name).map_err(|_| format!("`{name}` is not the name of a header"))?;
    let is_reserved = RESERVED.contains(&parsed.as_str())
        || RESERVED_STARTS.iter().any(|start| parsed.as_str().starts_with(start))
        || KNOWN.contains(&parsed.as_str());
    if is_reserved { Err(format!("the header `{name}` is set by the relay itself")) } else { Ok(parsed) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let fill = |now| template.fill(&event, now).unwrap();
        let (first, later) = (fill(NOW), fill(NOW.plus(Duration::from_secs(5))));
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
            ("ce_subject", "o-7"),
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
        let request = template(&endpoint).fill(&event, NOW).unwrap();
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
            ("ce-source", "shop"),
            ("ce-specversion", "1.0"),
            ("ce-subject", "o-7"),
            ("ce-time", "2023-11-14T22:13:20.000000Z"),
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
