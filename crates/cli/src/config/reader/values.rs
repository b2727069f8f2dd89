use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use hapax::settings::InvalidSetting;

use crate::config::reader::origin::{GivenValue, Origin};
use crate::config::reader::setting::SettingSpec;
use crate::config::tables::profile::Profile;

/// The value of every setting, each from the first origin that has one: flag, environment variable, file, default.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    by_flag: BTreeMap<&'static str, SettingValue>,
}

#[derive(Clone, Debug)]
struct SettingValue {
    setting: &'static SettingSpec,
    given: Option<GivenValue>,
}

/// Given values by flag.
pub(crate) type ByFlag = BTreeMap<&'static str, GivenValue>;

impl Values {
    /// Merges the values from flags and variables with those from the file, and with the defaults.
    pub(crate) fn new(settings: impl Iterator<Item = &'static SettingSpec>, flags: &ByFlag, file: &ByFlag) -> Self {
        let merge = |setting: &'static SettingSpec| {
            let default = || Some(GivenValue { texts: setting.default_texts()?, origin: Origin::Default });
            let given = flags.get(setting.flag).or_else(|| file.get(setting.flag)).cloned().or_else(default);
            (setting.flag, SettingValue { setting, given })
        };
        Self { by_flag: settings.map(merge).collect() }
    }

    /// Returns a copy in which the values of a profile replace the defaults.
    pub(crate) fn with_profile(&self, profile: &Profile) -> Self {
        let is_free = |flag: &str| !self.is_chosen(flag);
        let given = profile.values.iter().filter(|(flag, _)| is_free(flag)).map(|(flag, texts)| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            (*flag, GivenValue { texts, origin: Origin::Profile(profile.name) })
        });
        self.with(&given.collect())
    }

    /// Returns a copy in which the overrides of a route replace the values.
    pub(crate) fn with(&self, overrides: &ByFlag) -> Self {
        let mut by_flag = self.by_flag.clone();
        for (flag, given) in overrides {
            if let Some(value) = by_flag.get_mut(flag) {
                value.given = Some(given.clone());
            }
        }
        Self { by_flag }
    }

    /// Returns the value of the setting with this flag. None if it has neither a given value nor a default.
    pub(crate) fn given(&self, flag: &str) -> Option<&GivenValue> {
        let value = self.by_flag.get(flag);
        debug_assert!(value.is_some(), "{flag} is not a setting");
        value?.given.as_ref()
    }

    /// Parses the value of a setting that may have none.
    pub(crate) fn maybe<T>(&self, flag: &str, parse: Parse<T>) -> Result<Option<T>, anyhow::Error> {
        self.list(flag, parse).map(|values| values.into_iter().next())
    }

    /// Parses the value of a setting that must have one.
    pub(crate) fn one<T>(&self, flag: &str, parse: Parse<T>) -> Result<T, anyhow::Error> {
        self.maybe(flag, parse)?.ok_or_else(|| self.missing(flag))
    }

    /// Parses the values of a setting that is a list.
    pub(crate) fn list<T>(&self, flag: &str, parse: Parse<T>) -> Result<Vec<T>, anyhow::Error> {
        let texts = self.given(flag).map(|given| given.texts.as_slice()).unwrap_or_default();
        texts.iter().map(|text| parse(text).map_err(|error| self.wrong_value(flag, text, error))).collect()
    }

    /// Returns the error for a text that cannot be used as the value of this setting.
    pub(crate) fn wrong_value(&self, flag: &str, text: &str, error: anyhow::Error) -> anyhow::Error {
        let is_url = self.by_flag.get(flag).is_some_and(|value| value.setting.value == "URL");
        // A URL with a typing mistake may have its password anywhere behind the first colon.
        if is_url && text.contains(':') && !is_scheme_and_host(text) {
            return self.wrong(flag, format!("{error:#}"));
        }
        self.wrong(flag, quote(text, &error))
    }

    /// Returns the error for a wrong value: where the value was given, and why it is wrong.
    pub(crate) fn wrong(&self, flag: &str, reason: impl fmt::Display) -> anyhow::Error {
        match self.given(flag).map_or(&Origin::Default, |given| &given.origin) {
            Origin::File(line) => anyhow!("{line}: {}: {reason}", self.key(flag)),
            origin @ (Origin::Flag(_) | Origin::Environment(_) | Origin::Profile(_)) => anyhow!("{origin}: {reason}"),
            Origin::Default => anyhow!("{flag} (default): {reason}"),
        }
    }

    /// Returns the error for a value that breaks a limit that core states.
    pub(crate) fn invalid(&self, invalid: &InvalidSetting) -> anyhow::Error {
        // The settings of core have the names of their flags, in snake case.
        let flag = |name: hapax::settings::SettingName| name.as_str().replace('_', "-");
        if let InvalidSetting::Contradiction { shorter, longer, margin, why, .. } = *invalid {
            return self.too_long(&flag(shorter), &flag(longer), margin, why);
        }
        let flag = flag(invalid.setting());
        let text = self.given(&flag).map(|given| given.texts.join(",")).unwrap_or_default();
        self.wrong_value(&flag, &text, anyhow!("{}", invalid.limit()))
    }

    /// Returns the error for two durations that contradict each other. It names the one that the user chose.
    pub(crate) fn too_long(&self, shorter: &str, longer: &str, margin: Duration, why: &str) -> anyhow::Error {
        let chosen = if self.is_chosen(shorter) { shorter } else { longer };
        let (short, long) = (self.quoted(shorter), self.quoted(longer));
        let rule = match margin {
            Duration::ZERO => "must not be longer than".to_owned(),
            margin => format!("must be at least {margin:?} shorter than"),
        };
        self.wrong(chosen, format!("{short} {rule} {long}: {why}; shorten {shorter} or lengthen {longer}"))
    }

    /// Quotes a setting with its value and origin: `lease 30s (default)`.
    pub(crate) fn quoted(&self, flag: &str) -> String {
        match self.given(flag) {
            Some(given) => format!("{flag} {} ({})", given.texts.join(","), given.origin),
            None => format!("no {flag}"),
        }
    }

    /// Whether the user gave the value. It is the default otherwise.
    pub(crate) fn is_chosen(&self, flag: &str) -> bool {
        self.given(flag).is_some_and(|given| given.origin != Origin::Default)
    }

    fn key<'a>(&self, flag: &'a str) -> &'a str {
        self.by_flag.get(flag).map_or(flag, |value| value.setting.key)
    }

    /// Returns the error for a setting that must be given and is not.
    pub(crate) fn missing(&self, flag: &str) -> anyhow::Error {
        let Some(SettingValue { setting, .. }) = self.by_flag.get(flag) else { return anyhow!("{flag} is missing") };
        let SettingSpec { flag, variable, table, key, value, .. } = setting;
        anyhow!("{flag} is missing: give --{flag} {value}, {variable}, or `{key}` in [{table}] of the --config file")
    }
}

/// Puts a wrong text before the reason. A text that may contain a password is left out.
pub(crate) fn quote(text: &str, error: &anyhow::Error) -> String {
    let is_hidden = text.contains(['@', '?']) || text.contains("://") && !is_scheme_and_host(text);
    if is_hidden { format!("{error:#}") } else { format!("{text:?}: {error:#}") }
}

/// Whether the text is `SCHEME://HOST` with nothing behind it. Such a text has no place for a password.
fn is_scheme_and_host(text: &str) -> bool {
    let is_name = |text: &str| text.chars().all(|other| other.is_ascii_alphanumeric() || "+-.".contains(other));
    text.split_once("://").is_some_and(|(scheme, host)| is_name(scheme) && is_name(host))
}

/// Parses the text of a value.
pub(crate) type Parse<T> = fn(&str) -> Result<T, anyhow::Error>;
