//! What `--check` prints.

use crate::config::Config;
use crate::config::reader::file::OF_ROUTES;
use crate::config::reader::origin::GivenValue;
use crate::config::reader::settings::{SETTINGS, Setting};

/// Every setting with its value and where that came from, and every route.
pub(crate) fn show(config: &Config) -> String {
    let mut shown = table("SETTING", SETTINGS.iter().map(|setting| row(config, setting)));
    if !config.routes.is_empty() {
        shown += "\nWhat a route does not say is as above; the first that is named for a request holds.\n";
    }
    for route in &config.routes {
        let of_routes = OF_ROUTES.iter().filter(|name| !["method", "path", "protect"].contains(name));
        let of_routes = of_routes.filter_map(|name| Some((*name, route.table.of_routes.get(name)?)));
        let own = SETTINGS.iter().filter_map(|setting| Some((setting.flag, route.table.own.get(setting.flag)?)));
        let protect = route.table.of_routes.get("protect");
        let protect = [("protect", route.protect.to_string(), protect.map_or("as `key`".into(), origin))];
        let rows = of_routes.chain(own).map(|(name, given)| (name, given.texts.join(","), origin(given)));
        let title = format!("\nROUTE {}  ({})\n", route.name(), route.table.line);
        shown += &title;
        shown += &table("", protect.into_iter().chain(rows));
    }
    let others = if config.routes.is_empty() { "POST and PATCH" } else { "POST and PATCH that no route names" };
    shown + &format!("\n{others}: protected, key {}. Everything else streams past.\nok\n", config.protect)
}

type Row = (&'static str, String, String);

fn row(config: &Config, setting: &'static Setting) -> Row {
    let Some(given) = config.values.given(setting.flag) else {
        let value = match setting.flag {
            "data-dir" => config.data_dir.as_ref().map_or("none".into(), |path| path.display().to_string()),
            _ => "none".into(),
        };
        return (setting.flag, value, "default".into());
    };
    let value = match setting.flag {
        "store" => without_credentials(&given.texts.join(",")),
        "max-in-flight-per-tenant" => config.settings.max_in_flight_per_tenant.to_string(),
        _ => given.texts.join(","),
    };
    (setting.flag, value, origin(given))
}

fn origin(given: &GivenValue) -> String {
    given.origin.to_string()
}

/// A URL may carry a password.
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

/// Three columns, as wide as they must be.
fn table(title: &'static str, rows: impl Iterator<Item = Row>) -> String {
    let titles = (!title.is_empty()).then(|| (title, "VALUE".into(), "FROM".into()));
    let rows: Vec<Row> = titles.into_iter().chain(rows).collect();
    let names = rows.iter().map(|(name, _, _)| name.chars().count()).max().unwrap_or_default();
    let values = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or_default();
    rows.iter().map(|(name, value, origin)| format!("{name:names$}  {value:values$}  {origin}\n")).collect()
}
