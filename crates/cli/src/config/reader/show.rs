//! The text that `--check` prints.

use std::collections::BTreeMap;

use crate::config::reader::file::ROUTE_FIELDS;
use crate::config::reader::origin::GivenValue;
use crate::config::reader::parse::Protect;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::config::route::ConfiguredRoute;
use crate::config::settings::all;

/// Values that depend on other settings, by flag. They are shown in place of the defaults.
pub(crate) type Derived = BTreeMap<&'static str, String>;

/// Lists every setting with its value and origin, and every route.
pub(crate) fn show(values: &Values, derived: &Derived, routes: &[ConfiguredRoute], protect: Protect) -> String {
    let mut shown = table("SETTING", all().map(|setting| setting_row(setting, values, derived)));
    if !routes.is_empty() {
        shown += "\nA route takes every value that it does not set from above. The first route that matches applies.\n";
    }
    for route in routes {
        shown += &format!("\nROUTE {}  ({})\n", route.name(), route.table.line);
        shown += &table("", route_rows(route));
    }
    let others = if routes.is_empty() { "POST and PATCH" } else { "POST and PATCH without a route" };
    shown + &format!("\n{others}: protected, key {protect}. Every other request is forwarded unprotected.\nok\n")
}

type ShownRow = (&'static str, String, String);

fn setting_row(setting: &'static SettingSpec, values: &Values, derived: &Derived) -> ShownRow {
    let (text, origin) = match values.given(setting.flag) {
        Some(given) => (given.texts.join(","), origin(given)),
        None => ("none".into(), "default".into()),
    };
    let text = if setting.flag == "store" { without_credentials(&text) } else { text };
    (setting.flag, derived.get(setting.flag).cloned().unwrap_or(text), origin)
}

fn route_rows(route: &ConfiguredRoute) -> impl Iterator<Item = ShownRow> {
    let protect = route.table.fields.get("protect").map_or("as `key`".into(), origin);
    let fields = ROUTE_FIELDS.iter().filter(|name| !["method", "path", "protect"].contains(name));
    let fields = fields.filter_map(|name| Some((*name, route.table.fields.get(name)?)));
    let overrides = all().filter_map(|setting| Some((setting.flag, route.table.overrides.get(setting.flag)?)));
    let rows = fields.chain(overrides).map(|(name, given)| (name, given.texts.join(","), origin(given)));
    std::iter::once(("protect", route.protect.to_string(), protect)).chain(rows)
}

fn origin(given: &GivenValue) -> String {
    given.origin.to_string()
}

/// Hides the user name and password in a URL.
pub(in crate::config) fn without_credentials(url: &str) -> String {
    let (place, parameters) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    let place = match place.split_once("://").map(|(scheme, rest)| (scheme, rest.rsplit_once('@'))) {
        Some((scheme, Some((_, host)))) => format!("{scheme}://…@{host}"),
        Some((_, None)) | None => place.to_owned(),
    };
    match parameters {
        Some(parameters) if parameters.contains("pass=") || parameters.contains('@') => format!("{place}?…"),
        Some(parameters) => format!("{place}?{parameters}"),
        None => place,
    }
}

/// Aligns rows in three columns.
fn table(title: &'static str, rows: impl Iterator<Item = ShownRow>) -> String {
    let titles = (!title.is_empty()).then(|| (title, "VALUE".into(), "FROM".into()));
    let rows: Vec<ShownRow> = titles.into_iter().chain(rows).collect();
    let names = rows.iter().map(|(name, _, _)| name.chars().count()).max().unwrap_or_default();
    let values = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or_default();
    rows.iter().map(|(name, value, origin)| format!("{name:names$}  {value:values$}  {origin}\n")).collect()
}
