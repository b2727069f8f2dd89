//! The configuration of a command, from flags, environment variables, a file and defaults.
//!
//! ```text
//! reader/flags.rs (flags, variables) ─┐
//! reader/file.rs (the file) ──────────┼─► reader/values.rs ─► tables/gateway.rs, tables/store.rs, ─► Config
//! tables.rs (defaults) ───────────────┘   (reader/parse.rs)   tables/secrets.rs, tables/policy.rs,
//!                                                             tables/route.rs (one module for each table)
//! ```
//!
//! The module of each table declares the settings of the table, and `tables.rs` lists all of them. `reader/show.rs`
//! prints every value for `--check`. This module opens only the configuration file and the files with secrets.

// With all features, whose texts it has.
#[cfg(all(test, feature = "kafka"))]
mod annotated;
mod reader;
mod tables;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::http::{MakeFingerprint, ProblemTemplate, Tenant};
use hapax::{Identity, Settings};
use hapax_systems::StoreUrl;
use http::Method;

use crate::gateway::ingress::cross_origin::AllowedOrigins;
use crate::gateway::ingress::field_names::UnderscoreFields;
use crate::gateway::limits::Limits;
use crate::gateway::limits::trusted_proxies::TrustedProxies;
use crate::serve::logs::LogSettings;
use crate::store::answers::FarAnswersConfig;
use crate::upstream::client::Upstream;
use reader::file::ConfigFile;
use reader::values::Values;
use reader::{parse, show};
use tables::{gateway, log, profile, route, secrets, store};

pub(crate) use reader::flags::{Flags, HasFlags, mistyped};
pub(crate) use reader::parse::Protect;
pub(crate) use tables::Configured;
pub(crate) use tables::admin::{AdminConfig, audit_file_of};
pub(crate) use tables::policy::{KeySource, Rules, tenant_fields};
pub(crate) use tables::relay::{NAMESPACE as RELAY_NAMESPACE, RelayConfig};
pub(crate) use tables::route::ConfiguredRoute;
pub(crate) use tables::secrets::{AdminToken, identity as secret_identity};
pub(crate) use tables::worker::WorkerConfig;

/// A configuration without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) upstream: Upstream,
    pub(crate) upstream_ca: Option<PathBuf>,
    pub(crate) upstream_timeout: Duration,
    pub(crate) limits: Limits,
    pub(crate) trusted_proxies: TrustedProxies,
    /// The origins whose pages may read responses. None: the API decides.
    pub(crate) allowed_origins: Option<AllowedOrigins>,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: AdminConfig,
    /// The files with the server certificate and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// How long connections are accepted after a stop signal, and how long the whole stop may take.
    pub(crate) drain_delay: Duration,
    pub(crate) drain: Duration,
    pub(crate) store: StoreUrl,
    /// Where large answers are kept. None: in their records, as all others.
    pub(crate) answers: Option<FarAnswersConfig>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) identity: Identity,
    pub(crate) has_secret: bool,
    pub(crate) tenant: Tenant,
    pub(crate) underscore_fields: UnderscoreFields,
    /// How problems are shown. None: as problem details.
    pub(crate) problem_template: Option<Arc<ProblemTemplate>>,
    /// The methods that are protected where no route says otherwise.
    pub(crate) methods: Vec<Method>,
    /// The settings of the gate. Their policy is that of `rules`.
    pub(crate) settings: Settings,
    /// Whether a protected request must have a key. The default for routes without `protect` of their own.
    pub(crate) protect: Protect,
    pub(crate) rules: Rules,
    pub(crate) routes: Vec<ConfiguredRoute>,
    pub(crate) log: LogSettings,
    /// Every value with its origin, for `--check`.
    values: Values,
}

impl Config {
    /// Reads the file that the flags name, if they name one, and merges all values.
    ///
    /// # Errors
    /// The error names where the wrong value was given, what is wrong, and the remedy.
    pub(crate) fn load<C: HasFlags>(flags: &Flags<C>) -> Result<Self, anyhow::Error> {
        Self::merge(flags, flags.file()?)
    }

    fn merge<C: HasFlags>(flags: &Flags<C>, file: ConfigFile) -> Result<Self, anyhow::Error> {
        let mut values = Values::new(C::COMMAND.settings(), &flags.given, &file.given);
        if let Some(profile) = values.maybe("profile", profile::profile)? {
            values = values.with_profile(&profile);
        }
        let store: StoreUrl = values.one("store", str::parse)?;
        let secret = values.maybe("secrets", |path| secrets::identity(path.as_ref()))?;
        let protect = values.one("key", parse::key_rule)?;
        let rules = Rules::read(&values)?;
        let methods = gateway::methods(&values)?;
        let namespace = values.one("namespace", parse::namespace)?;
        let listen = gateway::address(&values)?;
        let data_dir = store::data_dir(&values, &store)?;
        let answers = store::answers(&values)?;
        let gate_settings = gateway::gate_settings(&values, &rules)?;
        let (drain_delay, drain) = gateway::drain(&values)?;
        Ok(Self {
            upstream: values.one("upstream", parse::upstream)?,
            upstream_ca: values.maybe("upstream-ca", parse::path)?,
            upstream_timeout: values.one("upstream-timeout", parse::nonzero_duration)?,
            limits: gateway::limits(&values, gate_settings.max_in_flight)?,
            trusted_proxies: TrustedProxies::new(values.list("trusted-proxy", parse::network)?),
            allowed_origins: gateway::allowed_origins(&values)?,
            listen,
            admin: AdminConfig::read(&values, data_dir.clone())?,
            tls: gateway::tls(&values)?,
            drain_delay,
            drain,
            data_dir,
            store,
            answers,
            namespace,
            has_secret: secret.is_some(),
            identity: secret.unwrap_or_default(),
            tenant: rules.tenant.clone(),
            underscore_fields: values.one("underscore-headers", parse::underscore_fields)?,
            settings: gate_settings,
            protect,
            problem_template: gateway::problem_template(&values)?,
            routes: route::routes(file.routes, &values, protect)?,
            methods,
            rules,
            log: log::read(&values)?,
            values,
        })
    }

    /// Lists every value with its origin.
    pub(crate) fn show(&self) -> String {
        let per_tenant = ("max-in-flight-per-tenant", self.settings.max_in_flight_per_tenant.to_string());
        let data_dir = self.data_dir.as_ref().map(|path| ("data-dir", path.display().to_string()));
        let final_retention = self.values.given("final-retention").or_else(|| self.values.given("retention"));
        let final_retention = final_retention.map(|given| ("final-retention", given.texts.join(",")));
        let audit = self.admin.audit_file.as_ref().map(|path| ("audit-file", path.display().to_string()));
        let older = self.rules.older_fingerprint.as_ref().map(|older| ("older-fingerprint", older.describe()));
        let derived = data_dir.into_iter().chain(audit).chain(final_retention).chain(older).chain([per_tenant]);
        let derived = derived.collect();
        let others = show::Others { protect: self.protect, methods: &self.methods };
        show::show(&self.values, &derived, &self.routes, &others)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{Arg, Args, Command};

    use super::*;
    use hapax::{OnBusy, OnLapse, OnStoreDown};

    /// The flags of a gateway.
    #[derive(Debug)]
    pub(crate) struct GatewayFlags;

    impl HasFlags for GatewayFlags {
        const COMMAND: Configured = Configured::Gateway;
        const AFTER_HELP: &str = "";
    }

    /// Flags that the file cannot have.
    const NOT_IN_FILE: [&str; 2] = ["config", "check"];

    #[test]
    fn every_flag_has_a_variable_and_a_key_in_the_file() {
        let command = Flags::<GatewayFlags>::augment_args(Command::new("gateway"));
        let mut flags: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        flags.retain(|flag| !NOT_IN_FILE.contains(flag));
        for flag in &flags {
            let variable = format!("HAPAX_{}", flag.to_uppercase().replace('-', "_"));
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
            assert_eq!(arg.get_env().and_then(std::ffi::OsStr::to_str), Some(&*variable));
            let setting = Configured::Gateway.settings().find(|setting| setting.flag == *flag).unwrap();
            let file = ConfigFile::parse(
                "h.toml",
                &format!("[{}]\n{} = 'x'", setting.table, setting.key),
                Configured::Gateway,
            )
            .unwrap();
            assert!(file.given.contains_key(flag), "{flag}");
        }
        assert_eq!(flags.len(), Configured::Gateway.settings().count());
    }

    #[test]
    fn a_default_never_contradicts_a_choice() {
        let file = "[gateway]\nupstream = 'http://a'\nmax-in-flight = 5\n[policy]\nlease = '20min'\n";
        let config = Config::merge(
            &Flags::<GatewayFlags>::default(),
            ConfigFile::parse("h.toml", file, Configured::Gateway).unwrap(),
        )
        .unwrap();
        assert_eq!(config.settings.max_in_flight_per_tenant, 5);
        assert_eq!(config.settings.policy.released_retention, Duration::from_secs(20 * 60));
        assert_eq!(config.settings.policy.on_busy, OnBusy::Wait(Duration::from_secs(10)));
        let file = "[gateway]\nupstream = 'http://a'\ntenant = 'none'\n";
        let config = Config::merge(
            &Flags::<GatewayFlags>::default(),
            ConfigFile::parse("h.toml", file, Configured::Gateway).unwrap(),
        )
        .unwrap();
        assert_eq!(config.settings.max_in_flight_per_tenant, 4096, "all callers are one tenant");
    }

    #[test]
    fn a_route_overrides_the_values_of_the_policy() {
        let file = "[gateway]\nupstream = 'http://a'\n[store]\ntimeout = '2s'\n[policy]\nlease = '3s'\n\
            retention = '4h'\nunknown-retention = '5h'\nmax-execution = '6h'\nwait = '7s'\nmax-request-body = 8\n\
            max-stored-body = 9\nrecord-patience = '1s'\n\
            on-lapse = 'retry'\nwhen-store-down = 'pass'\nstore-header = 'x-a'\n\
            [[route]]\npath = '/a'\nmax-execution = '10h'\nrecord-patience = '2s'\non-lapse = 'hold'\n";
        let config = Config::merge(
            &Flags::<GatewayFlags>::default(),
            ConfigFile::parse("h.toml", file, Configured::Gateway).unwrap(),
        )
        .unwrap();
        let (seconds, hours) = (Duration::from_secs, Duration::from_hours);
        let Config { settings, rules, routes, .. } = config;
        let policy = settings.policy;
        assert_eq!((settings.store_timeout, policy.lease, policy.retention), (seconds(2), seconds(3), hours(4)));
        assert_eq!((policy.unknown_retention, policy.max_execution), (hours(5), hours(6)));
        assert_eq!((policy.on_busy, rules.max_request_body, rules.max_stored_body), (OnBusy::Wait(seconds(7)), 8, 9));
        assert!(matches!(policy.on_lapse, OnLapse::Retry(_)) && matches!(policy.on_store_down, OnStoreDown::Pass(_)));
        assert_eq!(rules.store_headers, ["x-a"]);
        let own = &routes[0].rules.policy;
        assert_eq!((own.max_execution, own.lease), (hours(10), seconds(3)));
        assert_eq!((policy.record_patience, own.record_patience), (seconds(1), seconds(2)));
        assert!(matches!(own.on_lapse, OnLapse::Hold) && matches!(own.on_store_down, OnStoreDown::Pass(_)));
    }

    #[test]
    fn the_password_in_a_store_url_is_hidden() {
        let shown = |url: &str| show::without_credentials(url);
        assert_eq!(shown("redis://user:p@ss@host:6379/0"), "redis://…@host:6379/0");
        assert_eq!((shown("sqlite://hapax.db"), shown("memory:")), ("sqlite://hapax.db".into(), "memory:".into()));
        for (url, expected) in [
            ("redis://:pa?ss/@host", "redis://…@host"),
            ("redis://host?password=secret&db=2", "redis://host?password=…&db=2"),
            ("unix:///run/redis.sock?user=me&pass=secret", "unix:///run/redis.sock?user=…&pass=…"),
            ("rediss://host?ca=ca.pem&secret", "rediss://host?ca=ca.pem&…"),
            ("https://user:secret@api:1?token=secret", "https://…@api:1?token=…"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
