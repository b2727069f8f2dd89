use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use toml_span::value::{Key, Table, Value, ValueInner};

use crate::config::reader::guess::nearest;
use crate::config::reader::origin::{FileLine, GivenValue, Origin};
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::ByFlag;
use crate::config::tables::{Configured, TABLES, all, of_table, per_route};
use crate::files;

/// The values in the configuration file, not parsed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) given: ByFlag,
    /// In the order of the file.
    pub(crate) routes: Vec<RouteTable>,
    /// In the order of their names.
    pub(crate) endpoints: Vec<EndpointTable>,
}

/// One `[relay.endpoints.NAME]`.
#[derive(Clone, Debug)]
pub(crate) struct EndpointTable {
    pub(crate) name: String,
    pub(crate) line: FileLine,
    pub(crate) fields: BTreeMap<&'static str, GivenValue>,
}

/// The fields of an endpoint, and whether they are lists.
pub(crate) const ENDPOINT_FIELDS: [(&str, bool); 9] = [
    ("url", false),
    ("secret-file", false),
    ("header-file", false),
    ("timeout", false),
    ("max-in-flight", false),
    ("forward-header", true),
    ("allow-http", false),
    ("allow-network", true),
    ("ca", false),
];

/// The key of `[relay]` that holds the endpoints.
const ENDPOINTS: &str = "endpoints";

/// One `[[route]]`.
#[derive(Clone, Debug)]
pub(crate) struct RouteTable {
    pub(crate) line: FileLine,
    /// The fields that only routes have, by key.
    pub(crate) fields: BTreeMap<&'static str, GivenValue>,
    /// The settings that the route overrides.
    pub(crate) overrides: ByFlag,
}

/// The fields that only routes have.
pub(crate) const ROUTE_FIELDS: [&str; 3] = ["method", "path", "protect"];

/// The setting of `[policy]` that a route cannot override: it has `protect` instead.
const KEY: &str = "key";

impl ConfigFile {
    /// Reads the values of this command. The names of all others are checked, too.
    pub(crate) fn read(path: &Path, command: Configured) -> Result<Self, anyhow::Error> {
        let text = files::read_text(path).with_context(|| format!("the configuration {}", path.display()))?;
        Self::parse(&path.display().to_string(), &text, command)
    }

    /// Parses the text of a file. Errors call the file `name`.
    pub(crate) fn parse(name: &str, text: &str, command: Configured) -> Result<Self, anyhow::Error> {
        let reader = FileReader { file: name.into(), text };
        let document = toml_span::parse(text).map_err(|error| anyhow!("{}: {error}", reader.line(error.span.start)))?;
        let mut file = Self::default();
        for (table, value) in document.as_table().into_iter().flatten() {
            if table.name == "route" {
                file.routes = reader.routes(value)?;
                continue;
            }
            if !tables().contains(&&*table.name) {
                return Err(reader.unknown(table, &format!("table [{table}]"), "in this file", &tables()));
            }
            for (key, value) in reader.table(value, table)? {
                if table.name == "relay" && key.name == ENDPOINTS {
                    file.endpoints = reader.endpoints(value, key)?;
                    continue;
                }
                let setting = reader.setting(table, key)?;
                let given = reader.given(key, value, setting.is_list)?;
                if command.has(setting) {
                    file.given.insert(setting.flag, given);
                }
            }
        }
        Ok(file)
    }
}

fn tables() -> Vec<&'static str> {
    TABLES.into_iter().map(|(table, _)| table).chain(["route"]).collect()
}

/// Reads the values of one file and knows their lines.
struct FileReader<'a> {
    file: Arc<str>,
    text: &'a str,
}

impl FileReader<'_> {
    /// Returns the line of this byte.
    fn line(&self, byte: usize) -> FileLine {
        let before = self.text.as_bytes().get(..byte).unwrap_or(self.text.as_bytes());
        let number = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        FileLine { file: Arc::clone(&self.file), number }
    }

    fn table<'v, 'd>(&self, value: &'v Value<'d>, key: &Key<'_>) -> Result<&'v Table<'d>, anyhow::Error> {
        value.as_table().ok_or_else(|| anyhow!("{}: {key} must be a table; write [{key}]", self.line(key.span.start)))
    }

    fn setting(&self, table: &Key<'_>, key: &Key<'_>) -> Result<&'static SettingSpec, anyhow::Error> {
        let here = |setting: &&SettingSpec| setting.table == table.name && setting.key == key.name;
        all().find(here).ok_or_else(|| {
            let known: Vec<_> = of_table(&table.name).map(|setting| setting.key).collect();
            self.unknown(key, &format!("key {key}"), &format!("in [{table}]"), &known)
        })
    }

    fn routes(&self, value: &Value<'_>) -> Result<Vec<RouteTable>, anyhow::Error> {
        let Some(routes) = value.as_array() else {
            bail!("{}: every route is a table of its own; write [[route]]", self.line(value.span.start));
        };
        routes.iter().map(|route| self.route(route)).collect()
    }

    fn route(&self, value: &Value<'_>) -> Result<RouteTable, anyhow::Error> {
        let line = self.line(value.span.start);
        let Some(table) = value.as_table() else { bail!("{line}: every route is a table; write [[route]]") };
        let mut route = RouteTable { line, fields: BTreeMap::new(), overrides: ByFlag::new() };
        for (key, value) in table {
            let setting = per_route().find(|setting| setting.key == key.name);
            let field = ROUTE_FIELDS.into_iter().find(|name| *name == key.name);
            if key.name == KEY {
                bail!(
                    "{}: write `protect` in place of `key` in a route: required, optional or off",
                    self.line(key.span.start)
                );
            } else if let Some(setting) = setting {
                route.overrides.insert(setting.flag, self.given(key, value, setting.is_list)?);
            } else if let Some(name) = field {
                // Of the fields of a route, `method` is a list.
                route.fields.insert(name, self.given(key, value, name == "method")?);
            } else {
                let settings = per_route().map(|setting| setting.key).filter(|key| *key != KEY);
                let known: Vec<_> = ROUTE_FIELDS.into_iter().chain(settings).collect();
                return Err(self.unknown(key, &format!("key {key}"), "in [[route]]", &known));
            }
        }
        Ok(route)
    }

    fn endpoints(&self, value: &Value<'_>, key: &Key<'_>) -> Result<Vec<EndpointTable>, anyhow::Error> {
        let Some(endpoints) = value.as_table() else {
            bail!("{}: every endpoint is a table of its own; write [relay.endpoints.NAME]", self.line(key.span.start));
        };
        endpoints.iter().map(|(name, value)| self.endpoint(name, value)).collect()
    }

    fn endpoint(&self, name: &Key<'_>, value: &Value<'_>) -> Result<EndpointTable, anyhow::Error> {
        let line = self.line(name.span.start);
        let Some(table) = value.as_table() else { bail!("{line}: write [relay.endpoints.{name}]") };
        let mut endpoint = EndpointTable { name: name.name.to_string(), line, fields: BTreeMap::new() };
        for (key, value) in table {
            let Some((field, is_list)) = ENDPOINT_FIELDS.into_iter().find(|(field, _)| *field == key.name) else {
                let known = ENDPOINT_FIELDS.map(|(field, _)| field);
                return Err(self.unknown(key, &format!("key {key}"), &format!("in [relay.endpoints.{name}]"), &known));
            };
            endpoint.fields.insert(field, self.given(key, value, is_list)?);
        }
        Ok(endpoint)
    }

    fn given(&self, key: &Key<'_>, value: &Value<'_>, is_list: bool) -> Result<GivenValue, anyhow::Error> {
        let line = self.line(key.span.start);
        let texts = match value.as_ref() {
            ValueInner::Array(values) if is_list => {
                let texts = values.iter().map(text).collect::<Option<_>>();
                texts.with_context(|| format!("{line}: {key} must be a list of strings or whole numbers"))?
            }
            ValueInner::Array(_) => bail!("{line}: {key} must be one value, not a list"),
            value @ (ValueInner::String(_)
            | ValueInner::Integer(_)
            | ValueInner::Float(_)
            | ValueInner::Boolean(_)
            | ValueInner::Table(_)) => {
                let text =
                    scalar(value).with_context(|| format!("{line}: {key} must be a string or a whole number"))?;
                // A list may also be one text with commas, as in a flag or a variable.
                if is_list { text.split(',').map(|text| text.trim().to_owned()).collect() } else { vec![text] }
            }
        };
        Ok(GivenValue { texts, origin: Origin::File(line) })
    }

    /// Returns the error for an unknown name, with a guess of the one that was meant.
    fn unknown(&self, key: &Key<'_>, shown: &str, place: &str, known: &[&str]) -> anyhow::Error {
        let line = self.line(key.span.start);
        let elsewhere = all().find(|setting| setting.key == key.name || setting.flag == key.name);
        let meant = match (nearest(&key.name, known.iter().copied()), elsewhere) {
            (Some(near), _) => format!("did you mean {near}?"),
            (None, Some(SettingSpec { table, key, .. })) => format!("write {key} in [{table}]"),
            (None, None) => format!("known: {}", known.join(", ")),
        };
        anyhow!("{line}: unknown {shown} {place}; {meant}")
    }
}

fn text(value: &Value<'_>) -> Option<String> {
    scalar(value.as_ref())
}

fn scalar(value: &ValueInner<'_>) -> Option<String> {
    match value {
        ValueInner::String(text) => Some(text.to_string()),
        ValueInner::Integer(number) => Some(number.to_string()),
        ValueInner::Float(_) | ValueInner::Boolean(_) | ValueInner::Array(_) | ValueInner::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<ConfigFile, anyhow::Error> {
        ConfigFile::parse(name, text, Configured::Gateway)
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", parse("hapax.toml", text).unwrap_err())
    }

    #[test]
    fn every_value_has_its_line() {
        let file =
            parse("h.toml", "[store]\nurl = \"memory:\"\n\n[policy]\nlease='1s'\nmax-stored-body = 9\n").unwrap();
        let given = |flag: &str| (file.given[flag].texts[0].clone(), file.given[flag].origin.to_string());
        assert_eq!(given("store"), ("memory:".into(), "h.toml:2".into()));
        assert_eq!(given("lease"), ("1s".into(), "h.toml:5".into()));
        assert_eq!(given("max-stored-body"), ("9".into(), "h.toml:6".into()));
    }

    #[test]
    fn a_list_may_be_an_array_or_a_text_with_commas() {
        for list in ["[\"X-A\", \"X-B\"]", "\"X-A,X-B\""] {
            let file = parse("h.toml", &format!("[policy]\nstore-header = {list}")).unwrap();
            assert_eq!(file.given["store-header"].texts, ["X-A", "X-B"]);
        }
    }

    #[test]
    fn a_route_has_its_own_fields_and_overrides() {
        let file = "[[route]]\npath = '/a'\nlease = '1s'\n\n[[route]]\nmethod = ['PUT']\nfinal = [500, 501]\n";
        let routes = parse("h.toml", file).unwrap().routes;
        assert_eq!((routes[0].line.number, routes[1].line.number), (1, 5));
        assert_eq!(
            (&routes[0].fields["path"].texts[0], &routes[0].overrides["lease"].texts[0]),
            (&"/a".into(), &"1s".into())
        );
        assert_eq!(routes[1].overrides["final"].texts, ["500", "501"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_its_line_and_a_guess() {
        for (file, remedy) in [
            ("\n[polcy]\nlease = '1s'", "hapax.toml:2: unknown table [polcy] in this file; did you mean policy?"),
            ("[policy]\n\nleese = '1s'", "hapax.toml:3: unknown key leese in [policy]; did you mean lease?"),
            ("[policy]\nretenti0n = '1s'", "hapax.toml:2: unknown key retenti0n in [policy]; did you mean retention?"),
            ("[gateway]\nlease = '1s'", "hapax.toml:2: unknown key lease in [gateway]; write lease in [policy]"),
            ("[gateway]\nstore = 'x'", "hapax.toml:2: unknown key store in [gateway]; write url in [store]"),
            ("[secrets]\nxyz = 1", "hapax.toml:2: unknown key xyz in [secrets]; known: file"),
            ("[[route]]\npaht = '/'", "hapax.toml:2: unknown key paht in [[route]]; did you mean path?"),
            ("[[route]]\nlisten = '/'", "hapax.toml:2: unknown key listen in [[route]]; write listen in [gateway]"),
            ("[[route]]\nkey = 'optional'", "hapax.toml:2: write `protect` in place of `key`"),
        ] {
            assert!(refusal(file).starts_with(remedy), "{file:?}: {}", refusal(file));
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_its_line() {
        for (file, remedy) in [
            ("[policy]\nlease = ", "hapax.toml:2: "),
            ("[policy]\nlease = '1s'\nlease = '2s'", "hapax.toml:3: duplicate key"),
            ("[policy]\nlease = ['1s']", "hapax.toml:2: lease must be one value, not a list"),
            ("[policy]\nlease = true", "hapax.toml:2: lease must be a string or a whole number"),
            ("[policy]\nstore-header = [true]", "hapax.toml:2: store-header must be a list of strings"),
            ("policy = 1", "hapax.toml:1: policy must be a table; write [policy]"),
            ("[route]\npath = '/'", "hapax.toml:1: every route is a table of its own; write [[route]]"),
        ] {
            assert!(refusal(file).starts_with(remedy), "{file:?}: {}", refusal(file));
        }
    }
}
