//! What a gateway is told, by flag, environment, file and default, and what comes of it.
//!
//! ```text
//! flags.rs ─┐
//! file.rs ──┼─► values.rs ──► rules.rs, route.rs ──► Config, which holds no contradiction
//! defaults ─┘   (read.rs: how values are written)    show.rs prints it for --check
//! ```
//!
//! `settings.rs` has every value once. Nothing is opened here but the file itself and the secret.

mod policy;
mod reader;
mod route;
mod secrets;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hapax::http::Tenant;
use hapax::{Identity, Settings};

use crate::store::wiring::StoreUrl;
use crate::upstream::forward::Upstream;
use reader::file::ConfigFile;
use reader::values::Values;
use reader::{parse, show};
use store::state_directory;

pub(crate) use policy::{KeySource, Rules};
pub(crate) use reader::flags::{Flags, mistyped};
pub(crate) use reader::parse::Protect;
pub(crate) use route::Route;
pub(crate) use secrets::AdminToken;

/// A configuration without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) upstream: Upstream,
    pub(crate) upstream_ca: Option<PathBuf>,
    pub(crate) upstream_timeout: Duration,
    pub(crate) request_body_timeout: Duration,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// What the admin listener demands for everything but health.
    pub(crate) admin_token: Option<AdminToken>,
    /// The certificate with which clients are served, and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) store: StoreUrl,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) identity: Identity,
    pub(crate) has_secret: bool,
    pub(crate) tenant: Tenant,
    /// Of the gate; its policy is that of the rules.
    pub(crate) settings: Settings,
    /// Whether a `POST` or `PATCH` that no route names must have a key.
    pub(crate) protect: Protect,
    pub(crate) rules: Rules,
    pub(crate) routes: Vec<Route>,
    /// As they were given.
    values: Values,
}

impl Config {
    /// Reads the file that the flags name, if they do, and puts everything together.
    ///
    /// # Errors
    /// What is wrong, where it was given, and the remedy.
    pub(crate) fn load(flags: &Flags) -> Result<Self, anyhow::Error> {
        let file = flags.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        Self::of(flags, file)
    }

    fn of(flags: &Flags, file: ConfigFile) -> Result<Self, anyhow::Error> {
        let values = Values::new(&flags.given, file.given);
        let store: StoreUrl = values.one("store", str::parse)?;
        let secret = values.maybe("secrets", |path| secrets::identity(path.as_ref()))?;
        let protect = values.one("key", parse::key_rule)?;
        let rules = Rules::read(&values)?;
        let namespace = values.one("namespace", parse::namespace)?;
        let config = Self {
            upstream: values.one("upstream", parse::upstream)?,
            upstream_ca: values.maybe("upstream-ca", parse::path)?,
            upstream_timeout: values.one("upstream-timeout", parse::some_time)?,
            request_body_timeout: values.one("request-body-timeout", parse::some_time)?,
            listen: values.one("listen", parse::address)?,
            admin: values.one("admin", parse::address)?,
            admin_token: values.maybe("admin-token-file", |path| AdminToken::read(path.as_ref()))?,
            tls: tls(&values)?,
            data_dir: values
                .maybe("data-dir", parse::path)?
                .map_or_else(|| data_dir(&store, &namespace), |dir| Ok(Some(dir)))?,
            store,
            namespace,
            has_secret: secret.is_some(),
            identity: secret.unwrap_or_default(),
            tenant: values.one("tenant", parse::tenant)?,
            settings: settings(&values, &rules)?,
            protect,
            routes: route::routes(file.routes, &values, protect)?,
            rules,
            values,
        };
        config.agrees()?;
        Ok(config)
    }

    fn agrees(&self) -> Result<(), anyhow::Error> {
        if self.listen == self.admin && self.listen.port() != 0 {
            let what = format!("clients connect there, too ({}); give it another port", self.values.quoted("listen"));
            return Err(self.values.wrong("admin", what));
        }
        Ok(())
    }

    /// Every value and where it came from.
    pub(crate) fn show(&self) -> String {
        show::show(self)
    }
}

/// Where answers are kept that the store does not take, unless somebody says.
fn data_dir(store: &StoreUrl, namespace: &str) -> Result<Option<PathBuf>, anyhow::Error> {
    match store.data_dir() {
        None if !store.ends_with_process() => state_directory::directory(namespace, std::env::var_os).map(Some),
        beside_or_none => Ok(beside_or_none),
    }
}

fn tls(values: &Values) -> Result<Option<(PathBuf, PathBuf)>, anyhow::Error> {
    match (values.maybe("tls-cert", parse::path)?, values.maybe("tls-key", parse::path)?) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(values.wrong("tls-cert", "a certificate needs its key; name that by tls-key")),
        (None, Some(_)) => Err(values.wrong("tls-key", "a key needs its certificate; name that by tls-cert")),
    }
}

fn settings(values: &Values, rules: &Rules) -> Result<Settings, anyhow::Error> {
    let mut settings = Settings::default();
    settings.store_timeout = values.one("store-timeout", parse::some_time)?;
    settings.max_in_flight = values.one("max-in-flight", parse::count)?;
    settings.max_in_flight_per_tenant = values.one("max-in-flight-per-tenant", parse::count)?;
    let is_chosen = values.is_chosen("max-in-flight-per-tenant");
    let is_shared = values.one("tenant", parse::tenant)? == Tenant::None;
    let is_over = settings.max_in_flight_per_tenant > settings.max_in_flight;
    if is_over && is_chosen {
        let what = format!("one caller could never have so many; {} is the most", values.quoted("max-in-flight"));
        return Err(values.wrong("max-in-flight-per-tenant", what));
    }
    // The default gives way; and where all callers count as one, all that may run is theirs.
    if !is_chosen && (is_over || is_shared) {
        settings.max_in_flight_per_tenant = settings.max_in_flight;
    }
    settings.policy = rules.policy.clone();
    settings.validate()?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Args, Command};

    use super::*;
    use hapax::{OnBusy, OnLapse, OnStoreDown};
    use reader::settings::SETTINGS;

    /// Of the command line alone: they are about the file, or about no value.
    const WITHOUT_A_TWIN: [&str; 2] = ["config", "check"];

    #[test]
    fn every_flag_has_a_variable_and_a_line_in_the_file() {
        let command = Flags::augment_args(Command::new("gateway"));
        let mut flags: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        flags.retain(|flag| !WITHOUT_A_TWIN.contains(flag));
        for flag in &flags {
            let variable = format!("HAPAX_{}", flag.to_uppercase().replace('-', "_"));
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
            assert_eq!(arg.get_env().and_then(std::ffi::OsStr::to_str), Some(&*variable));
            let setting = SETTINGS.iter().find(|setting| setting.flag == *flag).unwrap();
            let file = ConfigFile::parse("h.toml", &format!("[{}]\n{} = 'x'", setting.table, setting.key)).unwrap();
            assert!(file.given.contains_key(flag), "{flag}");
        }
        assert_eq!(flags.len(), SETTINGS.len());
    }

    #[test]
    fn a_default_gives_way_where_it_would_contradict_a_choice() {
        let file = "[gateway]\nupstream = 'http://a'\nmax-in-flight = 5\n[policy]\nlease = '20min'\n";
        let config = Config::of(&Flags::default(), ConfigFile::parse("h.toml", file).unwrap()).unwrap();
        assert_eq!(config.settings.max_in_flight_per_tenant, 5);
        assert_eq!(config.settings.policy.released_retention, Duration::from_secs(20 * 60));
        let file = "[gateway]\nupstream = 'http://a'\ntenant = 'none'\n";
        let config = Config::of(&Flags::default(), ConfigFile::parse("h.toml", file).unwrap()).unwrap();
        assert_eq!(config.settings.max_in_flight_per_tenant, 4096, "all callers are one");
    }

    #[test]
    fn every_value_of_a_policy_arrives_and_a_route_has_its_own() {
        let file = "[gateway]\nupstream = 'http://a'\n[store]\ntimeout = '2s'\n[policy]\nlease = '3s'\nretention = '4h'\n\
            unknown-retention = '5h'\nmax-execution = '6h'\nwait = '7s'\nmax-request-body = 8\nmax-stored-body = 9\n\
            on-lapse = 'retry'\nwhen-store-down = 'pass'\nstore-header = 'x-a'\n\
            [[route]]\npath = '/a'\nmax-execution = '10h'\non-lapse = 'hold'\n";
        let config = Config::of(&Flags::default(), ConfigFile::parse("h.toml", file).unwrap()).unwrap();
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
        assert!(matches!(own.on_lapse, OnLapse::Hold) && matches!(own.on_store_down, OnStoreDown::Pass(_)));
    }

    #[test]
    fn a_password_in_the_url_of_a_store_is_not_shown() {
        let shown = |url: &str| show::without_credentials(url);
        assert_eq!(shown("redis://user:p@ss@host:6379/0"), "redis://…@host:6379/0");
        assert_eq!((shown("sqlite://hapax.db"), shown("memory:")), ("sqlite://hapax.db".into(), "memory:".into()));
    }
}
