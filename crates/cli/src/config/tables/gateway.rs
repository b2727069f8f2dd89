//! `[gateway]`: where clients connect, which API the gateway forwards to, and how much it runs at once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use hapax::Settings;
use hapax::http::{ProblemTemplate, Tenant};
use http::Method;

use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::config::tables::policy::{self, Rules};
use crate::files;
use crate::gateway::ingress::cross_origin::AllowedOrigins;
use crate::gateway::limits::Limits;
use crate::gateway::limits::shares::share_of;
use crate::serve::shutdown::Shutdown;

pub(crate) const TABLE: &str = "gateway";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "profile", "HAPAX_PROFILE")
        .value("NAME")
        .help("Set of values for settings that are not given: `stripe` or `ietf`; --check lists them")
        .details(
            "stripe: what the libraries of Stripe expect: keys are optional, POST and DELETE are protected, and \
             problems have the shape of its errors. ietf: the contract of the draft, as by default.",
        ),
    SettingSpec::new(TABLE, "upstream", "HAPAX_UPSTREAM")
        .value("URL")
        .help("The API that requests are forwarded to: https://HOST:PORT, http://HOST:PORT or h2c://HOST:PORT")
        .details(
            "https:// uses HTTP/2 if the API offers it, else HTTP/1.1. http:// uses HTTP/1.1. \
             h2c:// uses HTTP/2 without TLS; the API must support it, since nothing is negotiated.",
        ),
    SettingSpec::new(TABLE, "upstream-ca", "HAPAX_UPSTREAM_CA")
        .value("FILE")
        .help("PEM file with the certificate authorities that are trusted for an https:// API [default: the system's]"),
    SettingSpec::new(TABLE, "tls-cert", "HAPAX_TLS_CERT")
        .value("FILE")
        .help("PEM file with the server certificate and its chain; turns on TLS and HTTP/2 for clients"),
    SettingSpec::new(TABLE, "tls-key", "HAPAX_TLS_KEY")
        .value("FILE")
        .help("PEM file with the private key of --tls-cert")
        .details("The file must not be readable by everybody."),
    SettingSpec::new(TABLE, "listen", "HAPAX_LISTEN")
        .value("ADDRESS")
        .default("127.0.0.1:8080")
        .help("Address on which clients connect"),
    SettingSpec::new(TABLE, "admin", "HAPAX_ADMIN")
        .value("ADDRESS")
        .default("127.0.0.1:8081")
        .help("Address that serves /healthz, /readyz, /metrics and the admin API")
        .details("On an address that other hosts can reach, the last two are served only with a token."),
    SettingSpec::new(TABLE, "admin-token-file", "HAPAX_ADMIN_TOKEN_FILE")
        .value("FILE")
        .help("File with the token that the admin address requires to read: 16 or more visible characters")
        .details(
            "Every path but /healthz, /readyz and the files of the dashboard then requires \
             `Authorization: Bearer TOKEN`. \
             The file must not be readable by everybody.",
        ),
    SettingSpec::new(TABLE, "admin-host", "HAPAX_ADMIN_HOST")
        .value("NAME")
        .list()
        .help("Host name or address under which clients may ask --admin, beside localhost and loopback addresses")
        .details(
            "Any other name gets 421: a page of a browser could reach the admin address under a name of its own \
             (DNS rebinding). A read also works under each IP address, and a read with a token under each name. \
             A write needs a name or address that is listed, also with a token.",
        ),
    SettingSpec::new(TABLE, "upstream-timeout", "HAPAX_UPSTREAM_TIMEOUT")
        .value("DURATION")
        .default("60s")
        .help("How long the API may take to answer")
        .details("After the timeout the client gets 504, and the outcome of the request is unknown."),
    SettingSpec::new(TABLE, "request-body-timeout", "HAPAX_REQUEST_BODY_TIMEOUT")
        .value("DURATION")
        .default("60s")
        .help("How long the whole body of a protected request may take to arrive")
        .details("After the timeout the client gets 408, and nothing is recorded."),
    SettingSpec::new(TABLE, "idle-timeout", "HAPAX_IDLE_TIMEOUT")
        .value("DURATION")
        .default("75s")
        .help("How long a client connection may take to its first head, and from one request to the head of the next")
        .details(
            "Keep it longer than the idle time of the load balancer in front (often 60s): then the load balancer \
             closes an idle connection first, and never sends a request into a connection that is closing.",
        ),
    SettingSpec::new(TABLE, "handshake-timeout", "HAPAX_HANDSHAKE_TIMEOUT")
        .value("DURATION")
        .default("10s")
        .help("How long a client may take for its TLS handshake, and then for the start of HTTP/2")
        .details("A client that was asked to close its connection, and has no open request, gets the same time."),
    SettingSpec::new(TABLE, "stall-timeout", "HAPAX_STALL_TIMEOUT")
        .value("DURATION")
        .default("60s")
        .help("How long a client may read nothing of a response, or send nothing of a streamed body")
        .details("Then its HTTP/1 connection is closed, or its HTTP/2 stream is reset. A request goes on without it."),
    SettingSpec::new(TABLE, "upload-rate", "HAPAX_UPLOAD_RATE")
        .value("BYTES")
        .default("500B")
        .help("Least rate of a request body in bytes per second, after the first 10s; 0 turns it off")
        .details(
            "A shorter --stall-timeout takes the place of the 10s. \
             A protected request whose body is slower gets 408, and nothing is recorded. Another body streams to the \
             API; it may pause for --stall-timeout, and is cut off if it is slower.",
        ),
    SettingSpec::new(TABLE, "answer-memory", "HAPAX_ANSWER_MEMORY")
        .value("BYTES")
        .default("64MiB")
        .help("Memory for all answers that clients have not read yet")
        .details("Without room, a stream from the API waits, and protected requests get 503."),
    SettingSpec::new(TABLE, "address-share", "HAPAX_ADDRESS_SHARE")
        .value("PERCENT")
        .default("50")
        .help("How much one address may hold of the connections, of each memory and of --max-in-flight")
        .details(
            "Further connections of the address are closed, and further requests get 503. IPv6 addresses count by \
             their /64 network. 100 turns the limit off. Behind a proxy, set --trusted-proxy.",
        ),
    SettingSpec::new(TABLE, "trusted-proxy", "HAPAX_TRUSTED_PROXY")
        .value("CIDR")
        .list()
        .help("Network of proxies whose word about their clients counts, for instance 10.0.0.0/8 (repeatable)")
        .details(
            "The rightmost address of X-Forwarded-For that is not a trusted proxy then counts for --address-share, in \
             place of the address of the connection. From all other clients, Forwarded, X-Real-IP and X-Forwarded-* \
             are replaced; to X-Forwarded-For their address is appended.",
        ),
    SettingSpec::new(TABLE, "cors-origin", "HAPAX_CORS_ORIGIN")
        .value("ORIGIN")
        .list()
        .help("Origin whose pages may read replays and problems, for instance https://shop.example; `*`: every origin")
        .details(
            "Such a page may then use every path, method and header field, and read every response: the gateway \
             answers preflights itself and sets the fields of CORS, so refusals by the API do not count. \
             Pages of a named origin may send credentials, those of `*` may not. Do not write `*` before an API that \
             only its network protects. Without the setting, preflights go to the API.",
        ),
    SettingSpec::new(TABLE, "drain-delay", "HAPAX_DRAIN_DELAY")
        .value("DURATION")
        .default("0s")
        .help("How long connections are still accepted after SIGTERM; at least 2s shorter than --drain")
        .details(
            "/readyz is 503 at once, so that a load balancer can take the gateway out of its pool meanwhile. \
             If --drain is under 4s, the delay is at most half of it.",
        ),
    SettingSpec::new(TABLE, "drain", "HAPAX_DRAIN")
        .value("DURATION")
        .default("25s")
        .help("How long the whole stop after SIGTERM may take, --drain-delay included")
        .details("Requests that still run then are cut off; their leases expire, and retries follow --on-lapse."),
    SettingSpec::new(TABLE, "tenant", "HAPAX_TENANT")
        .value("RULE")
        .default("authorization")
        .list()
        .help("How the owner of a key is identified: `authorization`, `header:NAME` or `none`; or by several fields")
        .details(
            "authorization: by a hash of the Authorization field, so a renewed credential is a new tenant. \
             A replay does not ask the API whether the credential still holds. \
             header:NAME: by a header that only a trusted proxy may set. \
             none: not at all, so all callers share keys and answers. \
             Several, with commas: by a hash of all of these fields, for instance authorization,header:X-Account. \
             optional-header:NAME may be absent, as a field that chooses one of the accounts of a credential. \
             A [[route]] may have a rule of its own. Under another rule every key is new: a retry across the change \
             runs again.",
        ),
    SettingSpec::new(TABLE, "protect-method", "HAPAX_PROTECT_METHOD")
        .value("METHOD")
        .default("POST,PATCH")
        .list()
        .help("Method whose requests are protected, on routes that name none and without a route"),
    SettingSpec::new(TABLE, "problem-format", "HAPAX_PROBLEM_FORMAT")
        .value("FORMAT")
        .default("problem+json")
        .help("How the gateway shows problems: `problem+json`, or `json:TEMPLATE` in the shape of the API's errors")
        .details(
            "TEMPLATE is JSON with placeholders in its strings: {name}, {title}, {status}, {detail}, {retry}, {type}, \
             {instance} and {operation}, for instance json:{\"error\":{\"code\":\"{name}\",\"text\":\"{detail}\"}}.",
        ),
    SettingSpec::new(TABLE, "underscore-headers", "HAPAX_UNDERSCORE_HEADERS")
        .value("POLICY")
        .default("drop")
        .help("What happens to header fields with an underscore in their name: `drop` or `forward`")
        .details(
            "Services behind WSGI or CGI read X_Account as X-Account. A name that imitates a field that matters is \
             refused with 400 in any case. drop: the API does not get the others. forward: it does.",
        ),
    SettingSpec::new(TABLE, "max-in-flight", "HAPAX_MAX_IN_FLIGHT")
        .value("N")
        .default("4096")
        .help("Number of protected requests that may run at once; further ones get 503"),
    SettingSpec::new(TABLE, "max-in-flight-per-tenant", "HAPAX_MAX_IN_FLIGHT_PER_TENANT")
        .value("N")
        .default("1024")
        .help("Number of protected requests of one tenant that may run at once; at most --max-in-flight")
        .details("With --tenant none the default is --max-in-flight, since all callers are one tenant."),
];

/// Reads the address for clients.
///
/// # Errors
/// If an address is malformed, or that of the admin is the same.
pub(crate) fn address(values: &Values) -> Result<SocketAddr, anyhow::Error> {
    let (listen, admin) = (values.one("listen", parse::address)?, values.one("admin", parse::address)?);
    // Port 0 asks the system for a free port, so two of them do not collide.
    if listen == admin && listen.port() != 0 {
        let reason = format!("clients connect to the same address, {}; choose another port", values.quoted("listen"));
        return Err(values.wrong("admin", reason));
    }
    Ok(listen)
}

/// Reads the delay before the drain, and the limit of the drain.
///
/// # Errors
/// If the delay leaves no time for the drain.
pub(crate) fn drain(values: &Values) -> Result<(Duration, Duration), anyhow::Error> {
    let (delay, limit) = (values.one("drain-delay", parse::duration)?, values.one("drain", parse::duration)?);
    if limit.is_zero() {
        return Err(
            values.wrong("drain", "must not be zero: every running request would be cut off; write for instance 1s")
        );
    }
    let margin = Shutdown::least_margin(limit);
    if delay > limit.saturating_sub(margin) {
        return Err(values.too_long("drain-delay", "drain", margin, "running requests need time to end"));
    }
    Ok((delay, limit))
}

/// Reads the methods that are protected where no route says otherwise.
///
/// # Errors
/// If a method is never protected, or there is none.
pub(crate) fn methods(values: &Values) -> Result<Vec<Method>, anyhow::Error> {
    match values.list("protect-method", parse::method)? {
        methods if methods.is_empty() => {
            Err(values
                .wrong("protect-method", "the list is empty; to protect no request, write a route with `protect`"))
        }
        methods => Ok(methods),
    }
}

/// Reads the template of problems. None: they are shown as problem details.
///
/// # Errors
/// If the template is malformed.
pub(crate) fn problem_template(values: &Values) -> Result<Option<Arc<ProblemTemplate>>, anyhow::Error> {
    Ok(values.one("problem-format", parse::problem_format)?.map(Arc::new))
}

/// Reads the paths of the server certificate and its key.
pub(crate) fn tls(values: &Values) -> Result<Option<(PathBuf, PathBuf)>, anyhow::Error> {
    match (values.maybe("tls-cert", parse::path)?, values.maybe("tls-key", parse::path)?) {
        (Some(cert), Some(key)) => {
            // The key is read once, at the start: it may come from a pipe, and the host of a --check may lack it.
            if key.exists() {
                let wrong = |error: hapax::Error| values.wrong_value("tls-key", &key.to_string_lossy(), error.into());
                files::check_secret(&key).map_err(wrong)?;
            }
            Ok(Some((cert, key)))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(values.wrong("tls-cert", "the certificate needs a private key; add tls-key")),
        (None, Some(_)) => Err(values.wrong("tls-key", "the private key needs a certificate; add tls-cert")),
    }
}

/// Reads the origins whose pages may read responses. None: the gateway leaves that to the API.
///
/// # Errors
/// If an origin is malformed, or stands beside `*`.
pub(crate) fn allowed_origins(values: &Values) -> Result<Option<AllowedOrigins>, anyhow::Error> {
    match values.list("cors-origin", parse::origin)?.as_slice() {
        [] => Ok(None),
        [any] if any == "*" => Ok(Some(AllowedOrigins::Any)),
        origins if origins.iter().any(|origin| origin == "*") => {
            Err(values.wrong("cors-origin", "`*` stands for every origin; write it alone, or name the origins"))
        }
        origins => Ok(Some(AllowedOrigins::Listed(origins.to_vec()))),
    }
}

/// Reads the limits that protect the gateway against hostile clients.
pub(crate) fn limits(values: &Values, in_flight: usize) -> Result<Limits, anyhow::Error> {
    Ok(Limits {
        idle: values.one("idle-timeout", parse::nonzero_duration)?,
        handshake: values.one("handshake-timeout", parse::nonzero_duration)?,
        body: values.one("request-body-timeout", parse::nonzero_duration)?,
        stall: values.one("stall-timeout", parse::nonzero_duration)?,
        upload_rate: values.one("upload-rate", parse::bytes)?,
        answer_memory: values.one("answer-memory", answer_memory)?,
        address_share: values.one("address-share", parse::percent)?,
        in_flight,
        ..Limits::default()
    })
}

fn answer_memory(text: &str) -> Result<usize, anyhow::Error> {
    match parse::bytes(text)? {
        0 => bail!("must not be zero: every protected request would get 503; write for instance 64MiB"),
        bytes => Ok(bytes),
    }
}

/// Puts the settings of the gate together, with the policy of `rules`.
pub(crate) fn gate_settings(values: &Values, rules: &Rules) -> Result<Settings, anyhow::Error> {
    let mut settings = Settings::default();
    settings.store_timeout = values.one("store-timeout", parse::duration)?;
    settings.max_in_flight = values.one("max-in-flight", parse::count)?;
    settings.max_in_flight_per_tenant = values.one("max-in-flight-per-tenant", parse::count)?;
    settings.max_in_flight_per_origin = share_of(settings.max_in_flight, values.one("address-share", parse::percent)?);
    settings.policy = rules.policy.clone();
    settings.validate().map_err(|invalid| values.invalid(&invalid))?;
    let is_chosen = values.is_chosen("max-in-flight-per-tenant");
    let is_one_tenant = policy::tenant(values)? == Tenant::None;
    let is_over = settings.max_in_flight_per_tenant > settings.max_in_flight;
    if is_over && is_chosen {
        let reason = format!("must not be larger than {}", values.quoted("max-in-flight"));
        return Err(values.wrong("max-in-flight-per-tenant", reason));
    }
    // A default never contradicts a choice. If all callers are one tenant, its limit is the limit of all.
    if !is_chosen && (is_over || is_one_tenant) {
        settings.max_in_flight_per_tenant = settings.max_in_flight;
    }
    Ok(settings)
}
