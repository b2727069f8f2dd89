//! `[worker]`: where messages come from, which service processes them, and what identifies them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hapax::http::StatusOutcomes;
use hapax::outbox::TopicTemplate;
use hapax::worker::{KeyRule, MessageIdentity, TenantRule, WorkerSettings};
use hapax::{OnBusy, OnLapse, Policy, Repeatable, Settings};
use hapax_systems::{DeadLetterPlace, SourceUrl, StoreUrl};
use http::HeaderName;
use http::uri::{PathAndQuery, Uri};

use crate::config::AdminConfig;
use crate::config::reader::flags::{Flags, HasFlags};
use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::show;
use crate::config::reader::values::Values;
use crate::config::tables::Configured;
use crate::config::tables::secrets;
use crate::config::tables::{log, store};
use crate::serve::logs::LogSettings;
use crate::upstream::client::Upstream;
use crate::worker::target::LONGEST_RETRY_AFTER;

pub(crate) const TABLE: &str = "worker";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "source", "HAPAX_SOURCE").value("URL").help("Where messages come from: {sources}").details(
        "Workers with the same group, durable or queue share the messages. Secrets are best in files that the URL \
             names: password-file=PATH with a user for Kafka, NATS and RabbitMQ; token-file, nkey-file or \
             creds-file for NATS. sasl=scram-sha-512 and others are for Kafka. TLS: tls=yes for Kafka and NATS, \
             amqps:// for RabbitMQ; ca, cert and key for all three. The credentials for SQS come from the usual \
             places of AWS, and those for Pub/Sub are the Application Default Credentials.",
    ),
    SettingSpec::new(TABLE, "target", "HAPAX_TARGET")
        .value("URL")
        .help("The service that processes messages: http://HOST:PORT/PATH, https:// or h2c://")
        .details(
            "It gets each message by POST, with Hapax-Operation and Idempotency-Key: the id of the operation, the same \
             for each copy of the message. 2xx: done. 401, 403, 404, 405, 409, 425, 429, and 503 with Retry-After: \
             not applied, so it is sent again. Another 4xx: a dead letter. Everything else: unknown, and --on-lapse \
             decides. The worker holds a record in --store while the service works. The record and the effect do not \
             commit together; only a ledger in the service's own database does that.",
        ),
    SettingSpec::new(TABLE, "target-ca", "HAPAX_TARGET_CA")
        .value("FILE")
        .help("PEM file with the authorities that are trusted for an https:// target [default: the system's]"),
    SettingSpec::new(TABLE, "target-timeout", "HAPAX_TARGET_TIMEOUT")
        .value("DURATION")
        .default("60s")
        .help("How long the target may take to answer; after that the outcome is unknown"),
    SettingSpec::new(TABLE, "forward-header", "HAPAX_FORWARD_HEADER")
        .value("NAME")
        .list()
        .help("Further header of a message that the target gets; may be given several times")
        .details("It always gets the content type, the attributes of a CloudEvent, traceparent and tracestate."),
    SettingSpec::new(TABLE, "applied", "HAPAX_APPLIED")
        .value("STATUS")
        .list()
        .help("Further status of the target that means: done"),
    SettingSpec::new(TABLE, "not-applied", "HAPAX_NOT_APPLIED")
        .value("STATUS")
        .list()
        .help("Further status of the target that means: not applied, send it again"),
    SettingSpec::new(TABLE, "final", "HAPAX_FINAL")
        .value("STATUS")
        .list()
        .help("Further status of the target that means: rejected for good"),
    SettingSpec::new(TABLE, "unknown", "HAPAX_UNKNOWN")
        .value("STATUS")
        .list()
        .help("Further status of the target that means: outcome unknown"),
    SettingSpec::new(TABLE, "dead-letter", "HAPAX_DEAD_LETTER")
        .value("URL")
        .help("Where dead letters go: a store, a database, or a broker [default: as --store]")
        .details(
            "A broker, written as for --sink of a relay, publishes them to the topic dead-letters, or to the one of \
             the path, for consumers of your own: `hapax dead` cannot list or redrive them. RabbitMQ gets them under \
             the routing key dead-letters.",
        ),
    SettingSpec::new(TABLE, "dead-letter-topic", "HAPAX_DEAD_LETTER_TOPIC")
        .value("TEMPLATE")
        .help("The topic, subject or routing key of dead letters, such as {namespace}.{topic} [default: {topic}]")
        .details(
            "{topic} stands for dead-letters, and {namespace} for that of the worker. This setting wins over the path \
             of --dead-letter.",
        ),
    SettingSpec::new(TABLE, "on-dead", "HAPAX_ON_DEAD")
        .value("POLICY")
        .default("continue")
        .help("What later messages of an ordering key do after a dead letter: continue or park")
        .details(
            "park: they wait until `hapax dead redrive` has had its effect, or `hapax dead drop` has removed the \
             letter. The worker holds messages that wait. On Kafka, 10,000 of them stop their partition; on NATS, the \
             consumer's max_ack_pending of them stop the stream; on SQS, 10,000 stop the queue, and on Pub/Sub the \
             subscription; 64 MiB of them stop the worker. It needs dead letters in PostgreSQL or SQLite. It is not \
             for RabbitMQ.",
        ),
    SettingSpec::new(TABLE, "key", "HAPAX_KEY")
        .value("RULE")
        .default("header:idempotency-key,cloudevents")
        .list()
        .help("Where the key of a message is; the first rule that finds one wins")
        .details(
            "header:NAME, cloudevents, json:/POINTER, coordinates (the place of the message at its broker), or \
             payload-hash:BUCKET (a hash of the payload, and its time in spans such as 1h). \
             payload-hash:1h;/sent_at;/trace/id leaves out what is at these pointers.",
        ),
    SettingSpec::new(TABLE, "tenant", "HAPAX_TENANT")
        .value("RULE")
        .default("none")
        .help("Where the tenant of a message is: none, header:NAME or json:/POINTER"),
    SettingSpec::new(TABLE, "fingerprint", "HAPAX_FINGERPRINT").value("RULE").help(
        "Whether copies must have the same payload: on or off [default: on, except under keys made from the message]",
    ),
    SettingSpec::new(TABLE, "order", "HAPAX_ORDER")
        .value("RULE")
        .default("source")
        .help("What orders messages: source, or header:NAME for a source without ordering keys (NATS, RabbitMQ)")
        .details(
            "Messages with one ordering key are processed one after the other. Kafka has the key of a record, a FIFO \
             queue of SQS the message group, an ordered subscription of Pub/Sub the ordering key, and the SQLite \
             queue a column. Without an ordering key, messages are processed in any order.",
        ),
    SettingSpec::new(TABLE, "trust-operation", "HAPAX_TRUST_OPERATION")
        .value("RULE")
        .default("off")
        .help("Whether a header Hapax-Operation identifies a message: on or off")
        .details("Only if every producer is trusted: whoever sends an operation decides what counts as a copy."),
    SettingSpec::new(TABLE, "namespace", "HAPAX_NAMESPACE")
        .value("NAME")
        .help("Name of the consumer; workers with the same one share records [default: the group of --source]"),
    SettingSpec::new(TABLE, "concurrency", "HAPAX_CONCURRENCY")
        .value("N")
        .default("64")
        .help("How many batches run at once"),
    SettingSpec::new(TABLE, "batch", "HAPAX_BATCH")
        .value("N")
        .default("1")
        .help("How many messages a batch may have; the target gets each by a POST of its own"),
    SettingSpec::new(TABLE, "attempts", "HAPAX_ATTEMPTS")
        .value("N")
        .default("8")
        .help("After how many attempts that were not applied a message becomes a dead letter"),
    SettingSpec::new(TABLE, "retention", "HAPAX_RETENTION")
        .value("DURATION")
        .help("How long a copy of a message is recognized; at least --horizon [default: as --horizon]"),
    SettingSpec::new(TABLE, "horizon", "HAPAX_HORIZON")
        .value("DURATION")
        .default("14days")
        .help("How late a copy of a message may arrive: how long the broker keeps messages"),
    SettingSpec::new(TABLE, "admin", "HAPAX_ADMIN")
        .value("ADDRESS")
        .default("127.0.0.1:8082")
        .help("Address that serves /healthz, /readyz, /metrics and the admin API")
        .details("On an address that other hosts can reach, the last two are served only with a token."),
    SettingSpec::new(TABLE, "admin-token-file", "HAPAX_ADMIN_TOKEN_FILE")
        .value("FILE")
        .help("File with the token that the admin address requires to read: 16 or more visible characters"),
    SettingSpec::new(TABLE, "admin-host", "HAPAX_ADMIN_HOST")
        .value("NAME")
        .list()
        .help("Host name or address under which clients may ask --admin, beside localhost and loopback addresses"),
    SettingSpec::new(TABLE, "drain", "HAPAX_DRAIN")
        .value("DURATION")
        .default("25s")
        .help("How long running messages may take after SIGTERM")
        .details("What still runs then is delivered again; its lease expires, and --on-lapse decides."),
];

/// The settings of `[store]` and `[policy]` that a worker has.
pub(crate) const SHARED: [&str; 8] = [
    "store",
    "store-timeout",
    "data-dir",
    "lease",
    "unknown-retention",
    "max-execution",
    "record-patience",
    "on-lapse",
];

/// How long a copy of a message waits for the end of the first one, in its share of `--concurrency`.
const WAIT_FOR_COPY: Duration = Duration::from_secs(1);

/// The configuration of a worker without contradictions.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    pub(crate) source: SourceUrl,
    pub(crate) target: Target,
    /// Where dead letters go, as a URL that may have a password.
    pub(crate) dead_letter: DeadLetterPlace,
    /// Whether an ordering key waits after a dead letter.
    pub(crate) parks: bool,
    pub(crate) identity: MessageIdentity,
    pub(crate) worker: WorkerSettings,
    pub(crate) max_attempts: u32,
    pub(crate) store: StoreUrl,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) secret: Option<hapax::Identity>,
    /// The settings of the gate that keeps the records.
    pub(crate) gate: Settings,
    pub(crate) admin: AdminConfig,
    pub(crate) log: LogSettings,
    values: Values,
}

/// The service that processes messages.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) upstream: Upstream,
    pub(crate) path: PathAndQuery,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) forwarded: Vec<HeaderName>,
    pub(crate) outcomes: StatusOutcomes,
}

impl WorkerConfig {
    /// Reads the file that the flags name, if they name one, and merges all values.
    ///
    /// # Errors
    /// The error names where the wrong value was given, what is wrong, and the remedy.
    pub(crate) fn load<C: HasFlags>(flags: &Flags<C>) -> Result<Self, anyhow::Error> {
        let values = Values::new(C::COMMAND.settings(), &flags.given, &flags.file()?.given);
        let source = source(&values)?;
        let store: StoreUrl = values.one("store", str::parse)?;
        let namespace = values.maybe("namespace", parse::namespace)?.unwrap_or_else(|| source.group().to_owned());
        let secret = values.maybe("secrets", |path| secrets::identity(path.as_ref()))?;
        let dead_letter = dead_letter(&values, &store)?;
        let parks = values.one("on-dead", parse::is_park)?;
        if parks && !dead_letter.can_park() {
            return Err(values.wrong("on-dead", "park needs dead letters in PostgreSQL or SQLite: see --dead-letter"));
        }
        if parks {
            source.refuse_parking().map_err(|error| values.wrong("on-dead", error))?;
        }
        let target = target(&values)?;
        let gate = gate_settings(&values, &target)?;
        let data_dir = store::data_dir(&values, &store)?;
        Ok(Self {
            identity: identity(&values, &source, &namespace, secret.clone())?,
            worker: worker_settings(&values, &target, &gate)?,
            max_attempts: u32::try_from(values.one("attempts", parse::count)?).unwrap_or(u32::MAX),
            dead_letter,
            parks,
            admin: AdminConfig::read(&values, data_dir.clone())?,
            data_dir,
            log: log::read(&values)?,
            source,
            target,
            store,
            namespace,
            secret,
            gate,
            values,
        })
    }

    /// Lists every value with its origin.
    pub(crate) fn show(&self) -> String {
        let data_dir = self.data_dir.as_ref().map(|path| ("data-dir", path.display().to_string()));
        let window = humantime::format_duration(self.gate.policy.retention).to_string();
        let audit = self.admin.audit_file.as_ref().map(|path| ("audit-file", path.display().to_string()));
        let derived = [("namespace", self.namespace.clone()), ("retention", window)];
        let derived = derived.into_iter().chain(data_dir).chain(audit).collect();
        show::settings(Configured::Worker, &self.values, &derived) + "ok\n"
    }
}

fn source(values: &Values) -> Result<SourceUrl, anyhow::Error> {
    let source: SourceUrl = values.one("source", str::parse)?;
    match values.one("order", parse::order)? {
        Some(header) => source.ordered_by_header(&header).map_err(|error| values.wrong("order", format!("{error:#}"))),
        None => Ok(source),
    }
}

fn dead_letter(values: &Values, store: &StoreUrl) -> Result<DeadLetterPlace, anyhow::Error> {
    let place = match values.maybe("dead-letter", str::parse)? {
        Some(place) => place,
        None if store.ends_with_process() => {
            let place = store.place();
            bail!("{place} would lose the dead letters; add --dead-letter URL, or choose another --store")
        }
        None => DeadLetterPlace::Kept(store.clone()),
    };
    let Some(template) = values.maybe("dead-letter-topic", |text| Ok(text.parse::<TopicTemplate>()?))? else {
        return Ok(place);
    };
    let unused = || values.wrong("dead-letter-topic", "only a broker has topics: see --dead-letter, or remove it");
    place.with_topic(template).ok_or_else(unused)
}

fn target(values: &Values) -> Result<Target, anyhow::Error> {
    let (upstream, path) = values.one("target", target_url)?;
    let outcomes = StatusOutcomes::default().not_applied([404, 405, 409]).unknown(300..=399);
    Ok(Target {
        upstream,
        path,
        ca: values.maybe("target-ca", parse::path)?,
        timeout: values.one("target-timeout", parse::nonzero_duration)?,
        forwarded: values.list("forward-header", parse::header)?,
        outcomes: outcomes
            .applied(values.list("applied", parse::status)?)
            .not_applied(values.list("not-applied", parse::status)?)
            .finally(values.list("final", parse::status)?)
            .unknown(values.list("unknown", parse::status)?),
    })
}

/// Splits a URL into the server and the path.
fn target_url(text: &str) -> Result<(Upstream, PathAndQuery), anyhow::Error> {
    const WRITE: &str = "write http://HOST:PORT/PATH, https://HOST:PORT/PATH or h2c://HOST:PORT/PATH";
    let uri: Uri = text.parse().context(WRITE)?;
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let (scheme, authority) = uri.scheme_str().zip(uri.authority()).with_context(|| anyhow!(WRITE))?;
    Ok((parse::upstream(&format!("{scheme}://{authority}"))?, path))
}

fn identity(
    values: &Values,
    source: &SourceUrl,
    namespace: &str,
    secret: Option<hapax::Identity>,
) -> Result<MessageIdentity, anyhow::Error> {
    let identity = MessageIdentity::new(namespace).map_err(|error| values.wrong("namespace", error))?;
    let keys = values.list("key", |text| text.parse::<KeyRule>().map_err(Into::into))?;
    keys.iter().try_for_each(|rule| source.refuse_key(rule)).map_err(|error| values.wrong("key", error))?;
    let tenant = values.one("tenant", |text| text.parse::<TenantRule>().map_err(Into::into))?;
    let identity = identity.keys(keys).tenant(tenant).identity(secret.unwrap_or_default());
    let identity = match values.maybe("fingerprint", parse::is_on)? {
        Some(is_compared) => identity.fingerprint(is_compared),
        None => identity,
    };
    Ok(if values.one("trust-operation", parse::is_on)? { identity.trust_operation() } else { identity })
}

fn worker_settings(values: &Values, target: &Target, gate: &Settings) -> Result<WorkerSettings, anyhow::Error> {
    let mut settings = WorkerSettings::default();
    settings.concurrency = values.one("concurrency", parse::count)?;
    settings.batch = values.one("batch", parse::count)?;
    settings.drain = values.one("drain", parse::nonzero_duration)?;
    // A run ends with the timeout of the target, unless the store holds it up.
    settings.slow_after = 2 * gate.policy.lease.max(target.timeout);
    Ok(settings)
}

/// Puts the settings of the gate together.
fn gate_settings(values: &Values, target: &Target) -> Result<Settings, anyhow::Error> {
    let horizon = values.one("horizon", parse::duration)?;
    let mut policy = Policy::default();
    policy.lease = values.one("lease", parse::duration)?;
    policy.retention = values.maybe("retention", parse::duration)?.unwrap_or(horizon);
    policy.unknown_retention = values.one("unknown-retention", parse::duration)?;
    policy.max_execution = values.one("max-execution", parse::duration)?;
    policy.record_patience = values.one("record-patience", parse::duration)?;
    // A copy that comes while the first one is processed mostly gets its answer so, and not only after a whole lease.
    policy.on_busy = OnBusy::Wait(WAIT_FOR_COPY);
    // A record that expires before the next attempt would begin to count again.
    policy.released_retention = policy.lease.max(2 * LONGEST_RETRY_AFTER);
    if values.one("on-lapse", parse::is_retry)? {
        policy.on_lapse = OnLapse::Retry(Repeatable::declared(values.quoted("on-lapse")));
    }
    if policy.retention < horizon {
        let reason = format!("must be at least {}, or a late copy would run again", values.quoted("horizon"));
        return Err(values.wrong("retention", reason));
    }
    if target.timeout > policy.max_execution {
        let why = "the lease would expire while the worker still waits for the target";
        return Err(values.too_long("target-timeout", "max-execution", Duration::ZERO, why));
    }
    let mut settings = Settings::default();
    settings.store_timeout = values.one("store-timeout", parse::duration)?;
    settings.policy = policy;
    // The worker bounds what runs.
    settings.max_in_flight_per_tenant = settings.max_in_flight;
    settings.max_in_flight_per_origin = settings.max_in_flight;
    settings.validate().map_err(|invalid| values.invalid(&invalid))?;
    Ok(settings)
}
