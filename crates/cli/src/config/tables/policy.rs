//! `[policy]`: the rules for every protected request. A `[[route]]` may override each setting.

use std::time::Duration;

use hapax::http::{Grammar, JsonKey, KeyField, RawFingerprint, StatusOutcomes, Tenant, TenantPart};
use hapax::{OnBusy, OnLapse, OnStoreDown, Policy, Repeatable};
use http::HeaderName;
use http::header::AUTHORIZATION;

use crate::config::reader::parse::{self, FingerprintChange, KeyPlace};
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;

pub(crate) const TABLE: &str = "policy";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "key", "HAPAX_KEY")
        .value("RULE")
        .default("required")
        .help("Whether a POST or PATCH must have a key: `required` or `optional`")
        .details("required: a request without a key gets 400. optional: it is forwarded without protection."),
    SettingSpec::new(TABLE, "key-from", "HAPAX_KEY_FROM")
        .value("PLACE")
        .default("header:Idempotency-Key")
        .help("Where the key of a request is: `header:NAME`, or `json:/POINTER` for a member of the body"),
    SettingSpec::new(TABLE, "key-grammar", "HAPAX_KEY_GRAMMAR")
        .value("GRAMMAR")
        .default("lenient")
        .help("How a key in a header may be written: `lenient` or `strict`")
        .details(
            "lenient: as a quoted string or as the bare value; both are the same key. \
             strict: only as a quoted string, as the IETF draft requires.",
        ),
    SettingSpec::new(TABLE, "lease", "HAPAX_LEASE")
        .value("DURATION")
        .default("30s")
        .help("How long a running request holds its key without a renewal; at least 1s")
        .details(
            "The gateway renews the lease every third of it. If the process dies, the lease expires, \
             and --on-lapse says what a retry gets.",
        ),
    SettingSpec::new(TABLE, "retention", "HAPAX_RETENTION")
        .value("DURATION")
        .default("24h")
        .help("How long an answer is replayed; at least --lease"),
    SettingSpec::new(TABLE, "final-retention", "HAPAX_FINAL_RETENTION")
        .value("DURATION")
        .help("How long a final refusal, for instance 422, is replayed; at least --lease [default: as --retention]"),
    SettingSpec::new(TABLE, "unknown-retention", "HAPAX_UNKNOWN_RETENTION")
        .value("DURATION")
        .default("30days")
        .help("How long a request whose outcome is unknown is remembered; at least 1s longer than --lease"),
    SettingSpec::new(TABLE, "max-execution", "HAPAX_MAX_EXECUTION")
        .value("DURATION")
        .default("15min")
        .help("How long a request may run; after that its lease is no longer renewed")
        .details("At least --upstream-timeout, or the lease would expire while the API may still answer."),
    SettingSpec::new(TABLE, "record-patience", "HAPAX_RECORD_PATIENCE")
        .value("DURATION")
        .default("2s")
        .help("How long a client waits while the store does not confirm its answer; at most --lease counts")
        .details(
            "After that the answer is in the journal of --data-dir, the client gets it with Hapax-Recorded: pending, \
             and the gateway records it as soon as the store answers again.",
        ),
    SettingSpec::new(TABLE, "wait", "HAPAX_WAIT")
        .value("DURATION")
        .default("10s")
        .help("How long a retry waits for the answer while the first attempt runs")
        .details(
            "After that time it gets 409 in-progress with Retry-After, and at once when the gateway stops. 0s: it gets \
             that at once. Most clients send a request again whose connection broke, but treat 409 as an error.",
        ),
    SettingSpec::new(TABLE, "on-lapse", "HAPAX_ON_LAPSE")
        .value("POLICY")
        .default("hold")
        .help("What a retry gets after an attempt whose outcome is unknown: `hold` or `retry`")
        .details(
            "hold: 409 outcome-unknown until an operator resolves it, so there is never a second effect. \
             retry: the request runs again; choose it only if a second effect does no harm.",
        ),
    SettingSpec::new(TABLE, "applied", "HAPAX_APPLIED")
        .value("STATUS")
        .list()
        .help("Status of the API after which the effect happened; the answer is replayed"),
    SettingSpec::new(TABLE, "not-applied", "HAPAX_NOT_APPLIED")
        .value("STATUS")
        .list()
        .help("Status of the API after which the effect did not happen; a retry runs again"),
    SettingSpec::new(TABLE, "final", "HAPAX_FINAL")
        .value("STATUS")
        .list()
        .help("Status of the API after which the effect never happens; the answer is replayed"),
    SettingSpec::new(TABLE, "unknown", "HAPAX_UNKNOWN")
        .value("STATUS")
        .list()
        .help("Status of the API after which the effect may have happened; --on-lapse says what a retry gets"),
    SettingSpec::new(TABLE, "when-store-down", "HAPAX_WHEN_STORE_DOWN")
        .value("POLICY")
        .default("reject")
        .help("What happens to protected requests while the store is down: `reject` or `pass`")
        .details(
            "reject: 503, and nothing runs. \
             pass: every copy runs without a record; choose it only if a second effect does no harm.",
        ),
    SettingSpec::new(TABLE, "max-request-body", "HAPAX_MAX_REQUEST_BODY")
        .value("BYTES")
        .default("1MiB")
        .help("Largest body of a protected request; a larger one gets 413"),
    SettingSpec::new(TABLE, "max-stored-body", "HAPAX_MAX_STORED_BODY")
        .value("BYTES")
        .default("1MiB")
        .help("Largest body of an answer that is stored")
        .details("A larger answer is forwarded but not stored, so a retry gets 409 not-replayable."),
    SettingSpec::new(TABLE, "fingerprint-host", "HAPAX_FINGERPRINT_HOST")
        .value("RULE")
        .default("on")
        .help("Whether a retry must name the same host as the first request: `on` or `off`")
        .details(
            "on: the same key sent to another host gets 422. Upper and lower case and the default port do not count. \
             off: choose it only if all hosts lead to the same service.",
        ),
    SettingSpec::new(TABLE, "fingerprint", "HAPAX_FINGERPRINT")
        .value("FORM")
        .default("raw")
        .help("How bodies are compared: `raw` or `json-canonical`")
        .details(
            "raw: byte for byte. json-canonical: JSON by its value, so that neither white space nor the order of \
             members counts. JSON that two services may read differently, and any other body, is compared raw.",
        ),
    SettingSpec::new(TABLE, "fingerprint-header", "HAPAX_FINGERPRINT_HEADER")
        .value("NAME")
        .list()
        .help("Header field that a retry must have with the same value, for instance one that chooses an account"),
    SettingSpec::new(TABLE, "ignore-query", "HAPAX_IGNORE_QUERY")
        .value("NAME")
        .list()
        .help("Parameter of the query that may differ in a retry, for instance the id of a trace"),
    SettingSpec::new(TABLE, "older-fingerprint", "HAPAX_OLDER_FINGERPRINT")
        .value("RULE")
        .list()
        .help("Rule of comparison that is accepted, too, as `fingerprint` on the policy page names it")
        .details(
            "Each change of fingerprint, fingerprint-header, ignore-query or fingerprint-host makes another rule. \
             Without this setting, records made under the rule of the defaults are accepted beside a changed rule. \
             If another rule was in use, name it for one retention: \
             raw, or a list of json-canonical, host:off, header:NAME and without-query:NAME. none: no other rule. \
             Several gateways: let all of them accept the new rule so, before the first one uses it.",
        ),
    SettingSpec::new(TABLE, "store-header", "HAPAX_STORE_HEADER")
        .value("NAME")
        .list()
        .help("Further response header to store and replay; may be given several times"),
];

/// The values of `[policy]`, or of a `[[route]]` with its overrides.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) key: KeySource,
    /// The statuses of the API whose meaning the settings change.
    pub(crate) outcomes: StatusOutcomes,
    pub(crate) tenant: Tenant,
    pub(crate) fingerprint: RawFingerprint,
    /// The rule by which older records were made.
    pub(crate) older_fingerprint: Option<RawFingerprint>,
    /// The fields that the fingerprint covers.
    pub(crate) compared_headers: Vec<HeaderName>,
    pub(crate) max_request_body: usize,
    pub(crate) max_stored_body: usize,
    pub(crate) store_headers: Vec<HeaderName>,
}

/// Where the key of a request is, and how it is written.
#[derive(Clone, Debug)]
pub(crate) enum KeySource {
    Field(KeyField),
    Body(JsonKey),
}

impl Rules {
    /// Reads the rules and checks them for contradictions.
    pub(crate) fn read(values: &Values) -> Result<Self, anyhow::Error> {
        let policy = policy(values)?;
        policy.validate().map_err(|invalid| values.invalid(&invalid))?;
        check_timeouts(values, &policy)?;
        let fingerprint = fingerprint(values)?;
        Ok(Self {
            policy,
            key: key(values)?,
            outcomes: outcomes(values)?,
            tenant: tenant(values)?,
            older_fingerprint: older_fingerprint(values, &fingerprint)?,
            fingerprint,
            compared_headers: values.list("fingerprint-header", parse::compared_header)?,
            max_request_body: values.one("max-request-body", parse::bytes)?,
            max_stored_body: values.one("max-stored-body", parse::bytes)?,
            store_headers: values.list("store-header", parse::storable_header)?,
        })
    }
}

/// Reads the meanings that settings give to statuses of the API.
fn outcomes(values: &Values) -> Result<StatusOutcomes, anyhow::Error> {
    let mut outcomes = StatusOutcomes::default();
    let mut named: Vec<(u16, &str)> = Vec::new();
    for (name, add) in STATUS_LISTS {
        let statuses = values.list(name, parse::status)?;
        if let Some((status, other)) = named.iter().find(|(status, _)| statuses.contains(status)) {
            let reason = format!("{status} is in {other} and in {name}; remove it from one of them");
            return Err(values.wrong(name, reason));
        }
        named.extend(statuses.iter().map(|status| (*status, *name)));
        outcomes = add(outcomes, statuses);
    }
    Ok(outcomes)
}

type AddStatuses = fn(StatusOutcomes, Vec<u16>) -> StatusOutcomes;

/// The lists that give a status its outcome.
const STATUS_LISTS: &[(&str, AddStatuses)] = &[
    ("applied", StatusOutcomes::applied),
    ("not-applied", StatusOutcomes::not_applied),
    ("final", StatusOutcomes::finally),
    ("unknown", StatusOutcomes::unknown),
];

/// Reads the tenant: the caller, or another part of a request, that a key belongs to.
///
/// # Errors
/// If a rule is malformed, named twice, or does not go together with the others.
pub(crate) fn tenant(values: &Values) -> Result<Tenant, anyhow::Error> {
    let parts = values.list("tenant", parse::tenant_part)?;
    let is_twice = |(index, part): (usize, &Option<TenantPart>)| {
        let name = part.as_ref().map(TenantPart::name);
        parts[..index].iter().any(|earlier| earlier.as_ref().map(TenantPart::name) == name)
    };
    if parts.iter().enumerate().any(is_twice) {
        return Err(values.wrong("tenant", "a rule names one field twice; remove one of them"));
    }
    let named: Vec<_> = parts.iter().flatten().cloned().collect();
    match named.as_slice() {
        [] if parts.is_empty() => Err(values.wrong("tenant", "the list is empty; write `none` to identify no owner")),
        [] => Ok(Tenant::None),
        _ if named.len() < parts.len() => Err(values.wrong("tenant", "`none` stands for no rule; write it alone")),
        [TenantPart::Authorization] => Ok(Tenant::Authorization),
        [TenantPart::Header(name)] => Ok(Tenant::Header(name.clone())),
        fields if fields.iter().any(TenantPart::is_required) => Ok(Tenant::Parts(named)),
        _ => Err(values.wrong("tenant", "a request may lack all of these fields; add authorization or header:NAME")),
    }
}

/// The fields that name a tenant.
pub(crate) fn tenant_fields(tenant: &Tenant) -> Vec<HeaderName> {
    match tenant {
        Tenant::Authorization => vec![AUTHORIZATION],
        Tenant::Header(name) => vec![name.clone()],
        Tenant::Parts(parts) => parts.iter().map(|part| part.name().clone()).collect(),
        Tenant::None => Vec::new(),
    }
}

/// Reads how payloads are compared.
fn fingerprint(values: &Values) -> Result<RawFingerprint, anyhow::Error> {
    let mut rule = RawFingerprint::default();
    if values.one("fingerprint", parse::is_json_canonical)? {
        rule = rule.json_canonical();
    }
    if !values.one("fingerprint-host", parse::is_on)? {
        rule = rule.without_host();
    }
    let headers = values.list("fingerprint-header", parse::compared_header)?;
    let parameters = values.list("ignore-query", parse::query_parameter)?;
    let rule = headers.into_iter().fold(rule, RawFingerprint::header);
    Ok(parameters.into_iter().fold(rule, RawFingerprint::without_query_parameter))
}

/// Reads the other rule that is accepted, beside `newest`.
fn older_fingerprint(values: &Values, newest: &RawFingerprint) -> Result<Option<RawFingerprint>, anyhow::Error> {
    let changes = values.list("older-fingerprint", parse::fingerprint_change)?;
    let is_alone = |change: &FingerprintChange| matches!(change, FingerprintChange::Raw | FingerprintChange::NoRule);
    if changes.len() > 1 && changes.iter().any(is_alone) {
        return Err(values.wrong("older-fingerprint", "`raw` and `none` stand alone; remove one of the values"));
    }
    if matches!(changes[..], [FingerprintChange::NoRule]) {
        return Ok(None);
    }
    let older = changes.into_iter().fold(RawFingerprint::default(), |rule, change| match change {
        FingerprintChange::Raw | FingerprintChange::NoRule => rule,
        FingerprintChange::JsonCanonical => rule.json_canonical(),
        FingerprintChange::WithoutHost => rule.without_host(),
        FingerprintChange::Header(name) => rule.header(name),
        FingerprintChange::WithoutQuery(name) => rule.without_query_parameter(name),
    });
    Ok((older != *newest).then_some(older))
}

fn policy(values: &Values) -> Result<Policy, anyhow::Error> {
    let mut policy = Policy::default();
    policy.lease = values.one("lease", parse::duration)?;
    policy.retention = values.one("retention", parse::duration)?;
    policy.final_retention = values.maybe("final-retention", parse::duration)?;
    policy.unknown_retention = values.one("unknown-retention", parse::duration)?;
    policy.max_execution = values.one("max-execution", parse::duration)?;
    policy.record_patience = values.one("record-patience", parse::duration)?;
    // No flag sets it, so a longer lease must not contradict its default.
    policy.released_retention = policy.released_retention.max(policy.lease);
    if values.one("on-lapse", parse::is_retry)? {
        policy.on_lapse = OnLapse::Retry(Repeatable::declared(values.quoted("on-lapse")));
    }
    if values.one("when-store-down", parse::is_pass)? {
        policy.on_store_down = OnStoreDown::Pass(Repeatable::declared(values.quoted("when-store-down")));
    }
    let wait = values.one("wait", parse::duration)?;
    if !wait.is_zero() {
        policy.on_busy = OnBusy::Wait(wait);
    }
    Ok(policy)
}

fn key(values: &Values) -> Result<KeySource, anyhow::Error> {
    let is_strict = values.one("key-grammar", parse::is_strict)?;
    match values.one("key-from", parse::key_place)? {
        KeyPlace::Field(name) => {
            // Each key would be its own tenant, so callers that send the same key would get each other's answers.
            if tenant_fields(&tenant(values)?).contains(&name) {
                let tenant = values.quoted("tenant");
                let reason = format!("{name} already identifies the tenant ({tenant}); choose another header");
                return Err(values.wrong("key-from", reason));
            }
            let grammar = if is_strict { Grammar::Strict } else { Grammar::Lenient };
            Ok(KeySource::Field(KeyField::default().in_field(name).grammar(grammar)))
        }
        KeyPlace::Body(_) if is_strict => {
            let reason = format!(
                "strict is a grammar for headers, but the key is in the body, {}; remove key-grammar",
                values.quoted("key-from")
            );
            Err(values.wrong("key-grammar", reason))
        }
        KeyPlace::Body(key) => Ok(KeySource::Body(key)),
    }
}

/// Checks the timeouts of the gateway against the policy. The limits of the policy itself are stated in core.
fn check_timeouts(values: &Values, policy: &Policy) -> Result<(), anyhow::Error> {
    let upstream_timeout = values.one("upstream-timeout", parse::nonzero_duration)?;
    if upstream_timeout > policy.max_execution {
        let why = "the lease would expire while the gateway still waits for the API";
        return Err(values.too_long("upstream-timeout", "max-execution", Duration::ZERO, why));
    }
    let store_timeout = values.one("store-timeout", parse::duration)?;
    if store_timeout > policy.lease {
        let why = "a lease would expire before its renewal times out";
        return Err(values.too_long("store-timeout", "lease", Duration::ZERO, why));
    }
    Ok(())
}
