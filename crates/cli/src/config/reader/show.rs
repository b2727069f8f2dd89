//! The text that `--check` prints.

use std::collections::BTreeMap;
use std::path::Path;

use http::Method;

use crate::config::reader::file::EndpointTable;
use crate::config::reader::origin::GivenValue;
use crate::config::reader::parse::Protect;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::config::tables::route::ConfiguredRoute;
use crate::config::tables::{Configured, per_route};
use crate::serve::logs::escape_controls;

/// Values that depend on other settings, by flag. They are shown in place of the defaults.
pub(crate) type Derived = BTreeMap<&'static str, String>;

/// Lists every setting of a command with its value and origin.
pub(in crate::config) fn settings(command: Configured, values: &Values, derived: &Derived) -> String {
    table("SETTING", command.settings().map(|setting| setting_row(setting, values, derived)))
}

/// How requests are handled that have no route.
#[derive(Debug)]
pub(crate) struct Others<'a> {
    pub(crate) protect: Protect,
    pub(crate) methods: &'a [Method],
}

/// Lists every setting of a gateway with its value and origin, and every route.
pub(crate) fn show(values: &Values, derived: &Derived, routes: &[ConfiguredRoute], others: &Others<'_>) -> String {
    let mut shown = settings(Configured::Gateway, values, derived);
    if !routes.is_empty() {
        shown += "\nA route takes every value that it does not set from above. The first route that matches applies.\n";
    }
    for route in routes {
        shown += &escaped_line(&format!("ROUTE {}  ({})", route.name(), route.table.line));
        shown += &table("", route_rows(route));
    }
    let Others { protect, .. } = others;
    let methods = others.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(" and ");
    let without = if routes.is_empty() { "" } else { " without a route" };
    shown +=
        &format!("\n{methods}{without}: protected, key {protect}. Every other request is forwarded unprotected.\n");
    shown + &absent_files(values) + "ok\n"
}

/// Lists the endpoints of a relay.
pub(in crate::config) fn endpoints(endpoints: &[EndpointTable]) -> String {
    let rows = |endpoint: &EndpointTable| {
        let row = |(name, given): (&&'static str, &GivenValue)| {
            (*name, without_credentials(&given.texts.join(",")), origin(given))
        };
        let title = escaped_line(&format!("ENDPOINT {}  ({})", endpoint.name, endpoint.line));
        title + &table("", endpoint.fields.iter().map(row))
    };
    endpoints.iter().map(rows).collect()
}

/// The settings whose files are first opened at a start.
const OPENED_AT_START: [&str; 3] = ["tls-cert", "tls-key", "upstream-ca"];

/// Notes each file that is absent and that a start opens.
fn absent_files(values: &Values) -> String {
    let paths = OPENED_AT_START.iter().filter_map(|flag| Some((flag, values.given(flag)?.texts.last()?)));
    let absent = paths.filter(|(_, path)| !Path::new(path).exists());
    let note = |(flag, path)| format!("Note: --{flag}: {path}: there is no such file. The gateway needs it to start.");
    absent.map(note).map(|note| format!("{}\n", escape_controls(&note))).collect()
}

type ShownRow = (&'static str, String, String);

fn setting_row(setting: &'static SettingSpec, values: &Values, derived: &Derived) -> ShownRow {
    let (text, origin) = match values.given(setting.flag) {
        Some(given) => (given.texts.join(","), origin(given)),
        None => ("none".into(), "default".into()),
    };
    (setting.flag, derived.get(setting.flag).cloned().unwrap_or_else(|| without_credentials(&text)), origin)
}

fn route_rows(route: &ConfiguredRoute) -> impl Iterator<Item = ShownRow> {
    let protect = route.table.fields.get("protect").map_or("as `key`".into(), origin);
    let overrides = per_route().filter_map(|setting| Some((setting.flag, route.table.overrides.get(setting.flag)?)));
    let rows = overrides.map(|(name, given)| (name, given.texts.join(","), origin(given)));
    std::iter::once(("protect", route.protect.to_string(), protect)).chain(rows)
}

fn origin(given: &GivenValue) -> String {
    given.origin.to_string()
}

/// The parameters of a URL that are shown. Any other one may be a secret.
const SHOWN_PARAMETERS: [&str; 8] = ["ca", "cert", "connections", "db", "durable", "group", "key", "queue"];

/// Hides the user name and password in a URL, and the values of its parameters. Returns any other text as it is.
pub(in crate::config) fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    // A password may contain a question mark or a slash, so all before the last @ is hidden first.
    let rest = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, host)| format!("…@{host}"));
    let Some((place, query)) = rest.split_once('?') else { return format!("{scheme}://{rest}") };
    let shown = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if SHOWN_PARAMETERS.contains(&name) => parameter.to_owned(),
        Some((name, _)) => format!("{name}=…"),
        None => "…".to_owned(),
    };
    let parameters: Vec<_> = query.split('&').map(shown).collect();
    format!("{scheme}://{place}?{}", parameters.join("&"))
}

/// Returns the line after an empty one. A value cannot write control characters to the terminal.
fn escaped_line(line: &str) -> String {
    format!("\n{}\n", escape_controls(line))
}

/// Aligns rows in three columns.
fn table(title: &'static str, rows: impl Iterator<Item = ShownRow>) -> String {
    let titles = (!title.is_empty()).then(|| (title, "VALUE".into(), "FROM".into()));
    let escape = |(name, value, from): ShownRow| {
        (name, escape_controls(&value).into_owned(), escape_controls(&from).into_owned())
    };
    let rows: Vec<ShownRow> = titles.into_iter().chain(rows).map(escape).collect();
    let names = rows.iter().map(|(name, _, _)| name.chars().count()).max().unwrap_or_default();
    let values = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or_default();
    rows.iter().map(|(name, value, origin)| format!("{name:names$}  {value:values$}  {origin}\n")).collect()
}
