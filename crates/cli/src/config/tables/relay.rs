//! `[relay]`: which outbox is published, and where its events go.

mod endpoint;

use anyhow::{Context, bail};
use hapax::Millis;
use hapax::outbox::TopicTemplate;
use hapax::relay::RelaySettings;
use hapax_systems::{DEFAULT_ENDPOINT, SinkUrl, StoreUrl};

use crate::config::AdminConfig;
use crate::config::reader::file::EndpointTable;
use crate::config::reader::flags::{Flags, HasFlags};
use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::show;
use crate::config::reader::values::Values;
use crate::config::tables::Configured;
use crate::config::tables::log;
use crate::config::tables::store::default_data_dir;
use crate::serve::logs::LogSettings;

pub(crate) const TABLE: &str = "relay";

/// The namespace of the records in which relays claim their shares.
pub(crate) const NAMESPACE: &str = "hapax/relay";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "database", "HAPAX_DATABASE")
        .value("URL")
        .help("The database with the outbox: {databases}")
        .details("Relays of one database share its events, whatever their sinks are: give all of them the same sink."),
    SettingSpec::new(TABLE, "sink", "HAPAX_SINK").value("URL").help("Where events go: {sinks}").details(
        "https://HOST/PATH sends each event as a signed webhook to one endpoint, with --webhook-secret-file. \
             Several endpoints are in the file, as [relay.endpoints.NAME]; then there is no --sink.",
    ),
    SettingSpec::new(TABLE, "topic-template", "HAPAX_TOPIC_TEMPLATE")
        .value("TEMPLATE")
        .help("The topic, subject, queue or endpoint of an event, for instance shop.{topic} [default: {topic}]")
        .details(
            "{topic} stands for the topic of the row, and {namespace} for its namespace. This setting wins over the \
             path of --sink. With an https:// sink, all events go to its one endpoint.",
        ),
    SettingSpec::new(TABLE, "webhook-secret-file", "HAPAX_WEBHOOK_SECRET_FILE")
        .value("FILE")
        .help("File with the secrets that sign webhooks for an https:// sink, one a line: whsec_ and base64"),
    SettingSpec::new(TABLE, "lease", "HAPAX_LEASE")
        .value("DURATION")
        .default("10s")
        .help("How long the events of a relay that died wait for another one; at least 1s"),
    SettingSpec::new(TABLE, "retention", "HAPAX_RETENTION")
        .value("DURATION")
        .default("30days")
        .help("How long published rows are kept for `hapax outbox republish`, or forever")
        .details("At least as long as the sink recognizes a repeated event."),
    SettingSpec::new(TABLE, "max-in-flight", "HAPAX_MAX_IN_FLIGHT")
        .value("N")
        .default("1024")
        .help("How many events are being published at once"),
    SettingSpec::new(TABLE, "notifications", "HAPAX_NOTIFICATIONS")
        .value("RULE")
        .default("on")
        .help("Whether PostgreSQL tells the relay of new rows: on, or off behind a pooler of transactions")
        .details("Without them, and on SQLite, the relay looks by itself: after 10 to 250 ms."),
    SettingSpec::new(TABLE, "admin", "HAPAX_ADMIN")
        .value("ADDRESS")
        .default("127.0.0.1:8083")
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
        .help("How long the whole stop after SIGTERM may take")
        .details(
            "Events in flight have this time but for its last quarter, or its last 5s if those are shorter: then the \
             relay gives its buckets to other relays. What is not confirmed by then is published again, under the \
             same ids.",
        ),
];

/// The configuration of a relay without contradictions.
#[derive(Debug)]
pub(crate) struct RelayConfig {
    pub(crate) database: StoreUrl,
    pub(crate) sink: SinkUrl,
    pub(crate) relay: RelaySettings,
    /// Whether the database tells the relay of new rows.
    pub(crate) has_notifications: bool,
    pub(crate) admin: AdminConfig,
    pub(crate) log: LogSettings,
    values: Values,
    /// The endpoints of the file, for `--check`.
    endpoints: String,
}

impl RelayConfig {
    /// Reads the file that the flags name, if they name one, and merges all values.
    ///
    /// # Errors
    /// The error names where the wrong value was given, what is wrong, and the remedy.
    pub(crate) fn load<C: HasFlags>(flags: &Flags<C>) -> Result<Self, anyhow::Error> {
        let file = flags.file()?;
        let values = Values::new(C::COMMAND.settings(), &flags.given, &file.given);
        let database = values.one("database", database)?;
        Ok(Self {
            sink: sink(&values, &file.endpoints)?,
            relay: relay_settings(&values)?,
            has_notifications: values.one("notifications", parse::is_on)?,
            // A relay keeps nothing else on disk, and runs without a directory, too.
            admin: AdminConfig::read(&values, default_data_dir(&database).ok().flatten())?,
            database,
            log: log::read(&values)?,
            endpoints: show::endpoints(&file.endpoints),
            values,
        })
    }

    /// Lists every value with its origin, and every endpoint.
    pub(crate) fn show(&self) -> String {
        let template = self.sink.template().map(|template| ("topic-template", template.to_string()));
        let audit = self.admin.audit_file.as_ref().map(|path| ("audit-file", path.display().to_string()));
        let derived = template.into_iter().chain(audit).collect();
        show::settings(Configured::Relay, &self.values, &derived) + &self.endpoints
    }
}

fn database(text: &str) -> Result<StoreUrl, anyhow::Error> {
    let url: StoreUrl = text.parse().with_context(|| format!("write {}", StoreUrl::database_forms()))?;
    url.tables()?;
    Ok(url)
}

/// The sink of `--sink`, or the endpoints of the file.
fn sink(values: &Values, endpoints: &[EndpointTable]) -> Result<SinkUrl, anyhow::Error> {
    let secrets = values.maybe("webhook-secret-file", |path| endpoint::secrets(path.as_ref()))?;
    let sink = match (values.maybe("sink", str::parse::<SinkUrl>)?, secrets) {
        (Some(_), _) if !endpoints.is_empty() => {
            bail!("{}: with --sink, no endpoint of the file is used; remove one of them", endpoints[0].line)
        }
        (Some(sink), Some(secrets)) if sink.is_signed() => sink.signed_with(&secrets),
        (Some(sink), None) if sink.is_signed() => {
            return Err(values.wrong("sink", "webhooks are always signed; add --webhook-secret-file FILE"));
        }
        (Some(sink), None) => sink,
        (_, Some(_)) => return Err(values.wrong("webhook-secret-file", "only an https:// sink uses it; remove it")),
        (None, None) if endpoints.is_empty() => return Err(values.missing("sink")),
        (None, None) => SinkUrl::webhooks(endpoint::endpoints(endpoints)?),
    };
    let is_one_endpoint = sink.is_signed() && endpoints.is_empty();
    let template = match values.maybe("topic-template", |text| Ok(text.parse::<TopicTemplate>()?))? {
        Some(_) if is_one_endpoint => {
            return Err(values.wrong("topic-template", "all events go to the one endpoint of --sink; remove it"));
        }
        None if is_one_endpoint => Some(DEFAULT_ENDPOINT.parse()?),
        given => given,
    };
    Ok(template.into_iter().fold(sink, SinkUrl::with_topic))
}

fn relay_settings(values: &Values) -> Result<RelaySettings, anyhow::Error> {
    let mut settings = RelaySettings::default();
    settings.lease = Millis(values.one("lease", millis)?);
    settings.retention = values.one("retention", parse::retention)?;
    settings.max_in_flight = values.one("max-in-flight", parse::count)?;
    settings.drain = values.one("drain", parse::nonzero_duration)?;
    if settings.lease < Millis(1000) {
        return Err(values.wrong("lease", "must be at least 1s"));
    }
    if settings.max_in_flight == 0 {
        return Err(values.wrong("max-in-flight", "must be at least 1"));
    }
    Ok(settings)
}

fn millis(text: &str) -> Result<u32, anyhow::Error> {
    u32::try_from(parse::duration(text)?.as_millis()).context("write a shorter duration")
}
