//! The table of the problems, as published on the policy page.

use http::StatusCode;

/// What is fixed about a problem.
#[derive(Debug)]
pub(crate) struct ProblemSpec {
    pub(crate) status: StatusCode,
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Whether to send the request again: with the same key, with a new key, or never.
    pub(crate) retry: &'static str,
    /// What happened. `{}` stands for the value that the problem carries.
    pub(super) detail: &'static str,
    /// The `Retry-After` of the response, in seconds.
    pub(super) retry_after: Option<u64>,
}

pub(super) const SAME_KEY: &str = "same-key";
const NEW_KEY: &str = "new-key";
const NEVER: &str = "never";

const fn spec(status: StatusCode, name: &'static str, title: &'static str) -> ProblemSpec {
    ProblemSpec { status, name, title, retry: SAME_KEY, detail: "", retry_after: None }
}

impl ProblemSpec {
    const fn retry(self, retry: &'static str) -> Self {
        Self { retry, ..self }
    }

    const fn detail(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }

    const fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }
}

/// Defines each problem as a constant, and the list of all of them.
macro_rules! problems {
    ($($(#[$documentation:meta])* $name:ident: $spec:expr;)*) => {
        $($(#[$documentation])* pub(super) const $name: ProblemSpec = $spec;)*

        /// Every problem, in the order of the policy page.
        pub(crate) const PROBLEMS: &[ProblemSpec] = &[$($name),*];
    };
}

problems! {
    KEY_MISSING: spec(StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing")
        .retry(NEW_KEY)
        .detail("This operation requires an idempotency key. Send a new random one, for instance a UUID, in {}.");
    KEY_MALFORMED: spec(StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed")
        .retry(NEW_KEY)
        .detail("The idempotency key cannot be read: {}.");
    CALLER_UNKNOWN: spec(StatusCode::BAD_REQUEST, "caller-unknown", "The caller cannot be identified")
        .detail("The request was not run: {}.");
    KEY_REUSED: spec(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", "Idempotency-Key is already used")
        .retry(NEW_KEY)
        .detail("The key was used before for a request with another method, host, path, query, content type or body. \
                 This request was not run.");
    IN_PROGRESS: spec(StatusCode::CONFLICT, "in-progress", "A request is outstanding for this Idempotency-Key")
        .detail("An earlier copy of this request is still running. Send this request again to get its answer.");
    /// An operator or a probe needs some time, and a client that obeys must not send its request in a loop.
    OUTCOME_UNKNOWN: spec(StatusCode::CONFLICT, "outcome-unknown", "The outcome of this request is unknown")
        .retry_after(30)
        .detail("An earlier copy of this request may or may not have had its effect. The request is not run again \
                 until the outcome is known.");
    NOT_REPLAYABLE: spec(StatusCode::CONFLICT, "not-replayable", "The answer was not stored")
        .retry(NEVER)
        .detail("An earlier copy of this request was answered, and that answer was not stored. The request is not run \
                 again.");
    UPSTREAM_CUT: spec(StatusCode::BAD_GATEWAY, "upstream-cut", "The connection to the service broke")
        .detail("The connection to the service behind this server broke. Whether the request had its effect is \
                 unknown.");
    UPSTREAM_UNREACHABLE: spec(StatusCode::BAD_GATEWAY, "upstream-unreachable", "The service cannot be reached")
        .retry_after(1)
        .detail("The service behind this server cannot be reached. It did not receive the request.");
    UPSTREAM_TIMEOUT: spec(StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", "The service did not answer in time")
        .detail("The service behind this server did not answer in time. Whether the request had its effect is \
                 unknown.");
    STORE_UNAVAILABLE: spec(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The record store cannot be used")
        .retry_after(1)
        .detail("The record store cannot be used. The request was not run.");
    OVERLOADED: spec(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many requests are running")
        .retry_after(1)
        .detail("Too many requests are running, in total or for this caller. The request was not run.");
    RECORD_DAMAGED:
        spec(StatusCode::INTERNAL_SERVER_ERROR, "record-damaged", "The record of this request cannot be read")
        .detail("The record of this request cannot be read. The request is not run until an operator has repaired the \
                 record.");
    OUTCOME_UNRECORDED:
        spec(StatusCode::INTERNAL_SERVER_ERROR, "outcome-unrecorded", "The outcome could not be recorded")
        .detail("The request was run, but its answer could not be recorded.");
    BODY_TOO_LARGE: spec(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The request body is too large")
        .retry(NEVER)
        .detail("The body may have at most {} bytes. The request was not run.");
    BODY_CUT: spec(StatusCode::BAD_REQUEST, "body-cut", "The request body is incomplete")
        .detail("The body did not arrive completely. Nothing was recorded.");
    BODY_TIMEOUT: spec(StatusCode::REQUEST_TIMEOUT, "body-timeout", "The request body arrived too slowly")
        .detail("The body did not arrive completely in time. Nothing was recorded.");
    GRPC_CALL: spec(StatusCode::NOT_IMPLEMENTED, "grpc-call", "A call of gRPC cannot be protected")
        .retry(NEVER)
        .detail("This route is protected, and a call of gRPC cannot be protected. The call was not run. Only a route \
                 without protection passes calls of gRPC on.");
}
