use std::collections::BTreeMap;

use anyhow::anyhow;

use crate::config::reader::origin::{GivenValue, Origin};
use crate::config::reader::settings::{SETTINGS, Setting};

/// What was given for every setting, each by the first origin that has it: flag, environment, file, default.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    by_flag: BTreeMap<&'static str, GivenValue>,
}

impl Values {
    /// `flags` are what the command line and the environment say.
    pub(crate) fn new(flags: &BTreeMap<&'static str, GivenValue>, file: BTreeMap<&'static str, GivenValue>) -> Self {
        let defaults = SETTINGS.iter().filter_map(|setting| {
            let given = GivenValue { texts: vec![setting.default?.to_owned()], origin: Origin::Default };
            Some((setting.flag, given))
        });
        let mut by_flag: BTreeMap<_, _> = defaults.collect();
        by_flag.extend(file);
        by_flag.extend(flags.clone());
        Self { by_flag }
    }

    /// The same with a route's own values in place of some.
    pub(crate) fn with(&self, own: &BTreeMap<&'static str, GivenValue>) -> Self {
        let mut by_flag = self.by_flag.clone();
        by_flag.extend(own.clone());
        Self { by_flag }
    }

    /// What was given for the setting of this flag, if anything.
    pub(crate) fn given(&self, flag: &str) -> Option<&GivenValue> {
        debug_assert!(Setting::of(flag).is_some(), "{flag} is no setting");
        self.by_flag.get(flag)
    }

    /// The value of a setting that may have none.
    pub(crate) fn maybe<T>(&self, flag: &str, read: Read<T>) -> Result<Option<T>, anyhow::Error> {
        self.list(flag, read).map(|values| values.into_iter().next())
    }

    /// The value of a setting that must have one.
    pub(crate) fn one<T>(&self, flag: &str, read: Read<T>) -> Result<T, anyhow::Error> {
        self.maybe(flag, read)?.ok_or_else(|| missing(flag))
    }

    /// The values of a setting that is a list.
    pub(crate) fn list<T>(&self, flag: &str, read: Read<T>) -> Result<Vec<T>, anyhow::Error> {
        let texts = self.given(flag).map(|given| given.texts.as_slice()).unwrap_or_default();
        texts.iter().map(|text| read(text).map_err(|error| self.wrong(flag, format!("{error:#}")))).collect()
    }

    /// Says what is wrong with a setting's value, and where that was given.
    pub(crate) fn wrong(&self, flag: &str, what: impl std::fmt::Display) -> anyhow::Error {
        match self.given(flag).map_or(&Origin::Default, |given| &given.origin) {
            Origin::File(line) => anyhow!("{line}: {}: {what}", key(flag)),
            origin @ (Origin::Flag(_) | Origin::Environment(_)) => anyhow!("{origin}: {what}"),
            Origin::Default => anyhow!("{flag} (default): {what}"),
        }
    }

    /// A setting with its value and where that was given: `lease 30s (default)`.
    pub(crate) fn quoted(&self, flag: &str) -> String {
        match self.given(flag) {
            Some(given) => format!("{flag} {} ({})", given.texts.join(","), given.origin),
            None => format!("no {flag}"),
        }
    }

    /// Whether somebody chose this value.
    pub(crate) fn is_chosen(&self, flag: &str) -> bool {
        self.given(flag).is_some_and(|given| given.origin != Origin::Default)
    }
}

/// Reads a value from its text.
pub(crate) type Read<T> = fn(&str) -> Result<T, anyhow::Error>;

fn key(flag: &str) -> &str {
    Setting::of(flag).map_or(flag, |setting| setting.key)
}

fn missing(flag: &str) -> anyhow::Error {
    let Some(setting) = Setting::of(flag) else { return anyhow!("{flag} is missing") };
    let Setting { flag, variable, table, key, value, .. } = setting;
    anyhow!("{flag} is missing: give --{flag} {value}, {variable}, or `{key}` in [{table}] of the file in --config")
}
