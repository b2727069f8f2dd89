use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use toml_span::value::{Key, Table, Value, ValueInner};

use crate::config::reader::guess::nearest;
use crate::config::reader::origin::{FileLine, GivenValue, Origin};
use crate::config::reader::settings::{PER_ROUTE, SETTINGS, Setting, TABLES};

/// What the file says, not looked at yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFile {
    /// By flag.
    pub(crate) given: BTreeMap<&'static str, GivenValue>,
    /// In their order.
    pub(crate) routes: Vec<RouteTable>,
}

/// One `[[route]]`.
#[derive(Clone, Debug)]
pub(crate) struct RouteTable {
    pub(crate) line: FileLine,
    /// What only routes have, by its name.
    pub(crate) of_routes: BTreeMap<&'static str, GivenValue>,
    /// The settings that it has of its own, by flag.
    pub(crate) own: BTreeMap<&'static str, GivenValue>,
}

/// What only routes have.
pub(crate) const OF_ROUTES: [&str; 7] = ["method", "path", "protect", "applied", "not-applied", "final", "unknown"];

/// The setting in whose place a route says `protect`.
const KEY: &str = "key";

impl ConfigFile {
    pub(crate) fn read(path: &Path) -> Result<Self, anyhow::Error> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}; does it exist?", path.display()))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// `name` is what the file is called in errors.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, anyhow::Error> {
        let lines = Lines { file: name.into(), text };
        let document = toml_span::parse(text).map_err(|error| anyhow!("{}: {error}", lines.at(error.span.start)))?;
        let mut file = Self::default();
        for (table, value) in document.as_table().into_iter().flatten() {
            if table.name == "route" {
                file.routes = lines.routes(value)?;
                continue;
            }
            if !tables().contains(&&*table.name) {
                return Err(lines.unknown(table, &format!("the table [{table}]"), "here", &tables()));
            }
            for (key, value) in lines.table(value, table)? {
                let setting = lines.setting(table, key)?;
                file.given.insert(setting.flag, lines.given(key, value, setting.many)?);
            }
        }
        Ok(file)
    }
}

fn tables() -> Vec<&'static str> {
    TABLES.into_iter().map(|(table, _)| table).chain(["route"]).collect()
}

/// The file, to tell lines in it.
struct Lines<'a> {
    file: Arc<str>,
    text: &'a str,
}

impl Lines<'_> {
    fn at(&self, byte: usize) -> FileLine {
        let before = self.text.as_bytes().get(..byte).unwrap_or(self.text.as_bytes());
        let number = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        FileLine { file: Arc::clone(&self.file), number }
    }

    fn table<'v, 'd>(&self, value: &'v Value<'d>, key: &Key<'_>) -> Result<&'v Table<'d>, anyhow::Error> {
        value.as_table().ok_or_else(|| anyhow!("{}: {key} is a table; write [{key}]", self.at(key.span.start)))
    }

    fn setting(&self, table: &Key<'_>, key: &Key<'_>) -> Result<&'static Setting, anyhow::Error> {
        let here = |setting: &&Setting| setting.table == table.name && setting.key == key.name;
        SETTINGS.iter().find(here).ok_or_else(|| {
            let known: Vec<_> =
                SETTINGS.iter().filter(|setting| setting.table == table.name).map(|setting| setting.key).collect();
            self.unknown(key, &format!("{key}"), &format!("in [{table}]"), &known)
        })
    }

    fn routes(&self, value: &Value<'_>) -> Result<Vec<RouteTable>, anyhow::Error> {
        let Some(routes) = value.as_array() else {
            bail!("{}: each route is a table of its own; write [[route]]", self.at(value.span.start));
        };
        routes.iter().map(|route| self.route(route)).collect()
    }

    fn route(&self, value: &Value<'_>) -> Result<RouteTable, anyhow::Error> {
        let line = self.at(value.span.start);
        let Some(table) = value.as_table() else { bail!("{line}: each route is a table; write [[route]]") };
        let mut route = RouteTable { line, of_routes: BTreeMap::new(), own: BTreeMap::new() };
        for (key, value) in table {
            let own = SETTINGS.iter().find(|setting| setting.table == PER_ROUTE && setting.key == key.name);
            let of_routes = OF_ROUTES.into_iter().find(|name| *name == key.name);
            if key.name == KEY {
                bail!(
                    "{}: a route says `protect` in place of `key`: required, optional or off",
                    self.at(key.span.start)
                );
            } else if let Some(setting) = own {
                route.own.insert(setting.flag, self.given(key, value, setting.many)?);
            } else if let Some(name) = of_routes {
                route.of_routes.insert(name, self.given(key, value, name != "path" && name != "protect")?);
            } else {
                let own = SETTINGS.iter().filter(|setting| setting.table == PER_ROUTE && setting.key != KEY);
                let known: Vec<_> = OF_ROUTES.into_iter().chain(own.map(|setting| setting.key)).collect();
                return Err(self.unknown(key, &format!("{key}"), "in [[route]]", &known));
            }
        }
        Ok(route)
    }

    fn given(&self, key: &Key<'_>, value: &Value<'_>, many: bool) -> Result<GivenValue, anyhow::Error> {
        let line = self.at(key.span.start);
        let texts = match value.as_ref() {
            ValueInner::Array(values) if many => {
                let texts = values.iter().map(text).collect::<Option<_>>();
                texts.with_context(|| format!("{line}: {key} is a list of texts or whole numbers"))?
            }
            ValueInner::Array(_) => bail!("{line}: {key} has one value, not a list"),
            value @ (ValueInner::String(_)
            | ValueInner::Integer(_)
            | ValueInner::Float(_)
            | ValueInner::Boolean(_)
            | ValueInner::Table(_)) => {
                let text = scalar(value).with_context(|| format!("{line}: {key} is a text or a whole number"))?;
                if many { text.split(',').map(|text| text.trim().to_owned()).collect() } else { vec![text] }
            }
        };
        Ok(GivenValue { texts, origin: Origin::File(line) })
    }

    /// Refuses a name with the one that was probably meant.
    fn unknown(&self, key: &Key<'_>, shown: &str, place: &str, known: &[&str]) -> anyhow::Error {
        let line = self.at(key.span.start);
        let elsewhere = SETTINGS.iter().find(|setting| setting.key == key.name || setting.flag == key.name);
        let meant = match (nearest(&key.name, known.iter().copied()), elsewhere) {
            (Some(near), _) => format!("did you mean {near}?"),
            (None, Some(Setting { table, key, .. })) => format!("write {key} in [{table}]"),
            (None, None) => format!("there are {}", known.join(", ")),
        };
        anyhow!("{line}: {shown} is unknown {place}; {meant}")
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

    fn refusal(text: &str) -> String {
        format!("{:#}", ConfigFile::parse("hapax.toml", text).unwrap_err())
    }

    #[test]
    fn values_are_texts_with_their_lines() {
        let file =
            ConfigFile::parse("h.toml", "[store]\nurl = \"memory:\"\n\n[policy]\nlease='1s'\nmax-stored-body = 9\n")
                .unwrap();
        let given = |flag: &str| (file.given[flag].texts[0].clone(), file.given[flag].origin.to_string());
        assert_eq!(given("store"), ("memory:".into(), "h.toml:2".into()));
        assert_eq!(given("lease"), ("1s".into(), "h.toml:5".into()));
        assert_eq!(given("max-stored-body"), ("9".into(), "h.toml:6".into()));
    }

    #[test]
    fn lists_are_written_as_lists_or_with_commas() {
        for list in ["[\"X-A\", \"X-B\"]", "\"X-A,X-B\""] {
            let file = ConfigFile::parse("h.toml", &format!("[policy]\nstore-header = {list}")).unwrap();
            assert_eq!(file.given["store-header"].texts, ["X-A", "X-B"]);
        }
    }

    #[test]
    fn a_route_has_its_own_fields_and_the_settings_of_the_policy() {
        let file = "[[route]]\npath = '/a'\nlease = '1s'\n\n[[route]]\nmethod = ['PUT']\nfinal = [500, 501]\n";
        let routes = ConfigFile::parse("h.toml", file).unwrap().routes;
        assert_eq!((routes[0].line.number, routes[1].line.number), (1, 5));
        assert_eq!(
            (&routes[0].of_routes["path"].texts[0], &routes[0].own["lease"].texts[0]),
            (&"/a".into(), &"1s".into())
        );
        assert_eq!(routes[1].of_routes["final"].texts, ["500", "501"]);
    }

    #[test]
    fn what_is_unknown_is_refused_with_its_line_and_what_was_meant() {
        for (file, remedy) in [
            ("\n[polcy]\nlease = '1s'", "hapax.toml:2: the table [polcy] is unknown here; did you mean policy?"),
            ("[policy]\n\nleese = '1s'", "hapax.toml:3: leese is unknown in [policy]; did you mean lease?"),
            ("[policy]\nretenti0n = '1s'", "hapax.toml:2: retenti0n is unknown in [policy]; did you mean retention?"),
            ("[gateway]\nlease = '1s'", "hapax.toml:2: lease is unknown in [gateway]; write lease in [policy]"),
            ("[gateway]\nstore = 'x'", "hapax.toml:2: store is unknown in [gateway]; write url in [store]"),
            ("[secrets]\nxyz = 1", "hapax.toml:2: xyz is unknown in [secrets]; there are file"),
            ("[[route]]\npaht = '/'", "hapax.toml:2: paht is unknown in [[route]]; did you mean path?"),
            ("[[route]]\nlisten = '/'", "hapax.toml:2: listen is unknown in [[route]]; write listen in [gateway]"),
            ("[[route]]\nkey = 'optional'", "hapax.toml:2: a route says `protect` in place of `key`"),
        ] {
            assert!(refusal(file).starts_with(remedy), "{file:?}: {}", refusal(file));
        }
    }

    #[test]
    fn what_is_written_wrongly_is_refused_with_its_line() {
        for (file, remedy) in [
            ("[policy]\nlease = ", "hapax.toml:2: "),
            ("[policy]\nlease = '1s'\nlease = '2s'", "hapax.toml:3: duplicate key"),
            ("[policy]\nlease = ['1s']", "hapax.toml:2: lease has one value, not a list"),
            ("[policy]\nlease = true", "hapax.toml:2: lease is a text or a whole number"),
            ("[policy]\nstore-header = [true]", "hapax.toml:2: store-header is a list of texts"),
            ("policy = 1", "hapax.toml:1: policy is a table; write [policy]"),
            ("[route]\npath = '/'", "hapax.toml:1: each route is a table of its own; write [[route]]"),
        ] {
            assert!(refusal(file).starts_with(remedy), "{file:?}: {}", refusal(file));
        }
    }
}
