use std::time::Duration;

use hapax::http::{Grammar, JsonKey, KeyField, Tenant};
use hapax::{OnBusy, OnLapse, OnStoreDown, Policy, Repeatable};
use http::HeaderName;
use http::header::AUTHORIZATION;

use crate::config::reader::parse::{self, KeyPlace};
use crate::config::reader::values::Values;

/// What `[policy]` says of all requests, and each `[[route]]` of its own.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) key: KeySource,
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
    pub(crate) fn read(values: &Values) -> Result<Self, anyhow::Error> {
        let policy = policy(values)?;
        agree(values, &policy)?;
        Ok(Self {
            policy,
            key: key(values)?,
            max_request_body: values.one("max-request-body", parse::bytes)?,
            max_stored_body: values.one("max-stored-body", parse::bytes)?,
            store_headers: values.list("store-header", parse::kept_header)?,
        })
    }
}

fn policy(values: &Values) -> Result<Policy, anyhow::Error> {
    let mut policy = Policy::default();
    policy.lease = values.one("lease", parse::duration)?;
    policy.retention = values.one("retention", parse::duration)?;
    policy.unknown_retention = values.one("unknown-retention", parse::duration)?;
    policy.max_execution = values.one("max-execution", parse::some_time)?;
    // What was released must outlive the requests that are still under way.
    policy.released_retention = policy.released_retention.max(policy.lease);
    if values.one("on-lapse", parse::may_retry)? {
        policy.on_lapse = OnLapse::Retry(Repeatable::declared(values.quoted("on-lapse")));
    }
    if values.one("when-store-down", parse::may_pass)? {
        policy.on_store_down = OnStoreDown::Pass(Repeatable::declared(values.quoted("when-store-down")));
    }
    let wait = values.one("wait", parse::duration)?;
    if !wait.is_zero() {
        policy.on_busy = OnBusy::Wait(wait);
    }
    Ok(policy)
}

fn key(values: &Values) -> Result<KeySource, anyhow::Error> {
    let strict = values.one("key-grammar", parse::is_strict)?;
    match values.one("key-from", parse::key_place)? {
        KeyPlace::Field(name) => {
            let tenant = match values.one("tenant", parse::tenant)? {
                Tenant::Authorization => Some(AUTHORIZATION),
                Tenant::Header(name) => Some(name),
                Tenant::None => None,
            };
            if tenant.as_ref() == Some(&name) {
                let what = format!("{name} names the tenant, too ({}); take another header", values.quoted("tenant"));
                return Err(values.wrong("key-from", what));
            }
            let grammar = if strict { Grammar::Strict } else { Grammar::Lenient };
            Ok(KeySource::Field(KeyField::default().in_field(name).grammar(grammar)))
        }
        KeyPlace::Body(_) if strict => {
            let what = format!(
                "strict is how a header is written, but the key is in the body ({}); leave key-grammar out",
                values.quoted("key-from")
            );
            Err(values.wrong("key-grammar", what))
        }
        KeyPlace::Body(key) => Ok(KeySource::Body(key)),
    }
}

/// Looks for values that are impossible, or contradict each other.
fn agree(values: &Values, policy: &Policy) -> Result<(), anyhow::Error> {
    let Policy { lease, retention, unknown_retention, max_execution, .. } = *policy;
    let upstream_timeout = values.one("upstream-timeout", parse::some_time)?;
    let store_timeout = values.one("store-timeout", parse::some_time)?;
    if lease < SHORTEST_LEASE {
        return Err(values.wrong("lease", "too short: it could lapse between two renewals; make it 1s or more"));
    }
    for (flag, duration) in [("lease", lease), ("retention", retention), ("unknown-retention", unknown_retention)] {
        let (longest, shown) = if flag == "lease" { (LONGEST_LEASE, "49days") } else { (LONGEST_LIFE, "10years") };
        if duration > longest {
            return Err(values.wrong(flag, format!("too long for a record to hold it; make it {shown} or less")));
        }
    }
    let lease = ("lease", lease);
    // Whole seconds: a record must outlive its lease by one.
    let unknown_retention = ("unknown-retention", unknown_retention.saturating_sub(Duration::from_secs(1)));
    for (short, long, why) in [
        (lease, ("retention", retention), "a copy of a request that is still under way would run it again"),
        (lease, unknown_retention, "what became of a request would be forgotten before it could be known"),
        (
            ("upstream-timeout", upstream_timeout),
            ("max-execution", max_execution),
            "the lease would lapse while the API is waited for",
        ),
        (("store-timeout", store_timeout), lease, "a lease would be over before its renewal is given up"),
    ] {
        if short.1 > long.1 {
            return Err(contradiction(values, short.0, long.0, why));
        }
    }
    Ok(())
}

/// `short` is not shorter than `long`. The remedy is for whoever chose one of them.
fn contradiction(values: &Values, short: &str, long: &str, why: &str) -> anyhow::Error {
    let (quoted_short, quoted_long) = (values.quoted(short), values.quoted(long));
    let blamed = if values.is_chosen(short) { short } else { long };
    let what = format!("{quoted_short} must be shorter than {quoted_long}: {why}; shorten {short} or lengthen {long}");
    values.wrong(blamed, what)
}

const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// A record holds the milliseconds of its lease in 32 bits.
const LONGEST_LEASE: Duration = Duration::from_hours(49 * 24);
/// A record holds the second in which it expires in 32 bits, which end in 2106.
const LONGEST_LIFE: Duration = Duration::from_hours(10 * 366 * 24);
