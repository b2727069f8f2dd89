//! One setting: its flag, its environment variable and its line in the file.

/// A value that can be given by flag, environment variable and file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingSpec {
    /// The flag without its dashes. The settings are looked up by it.
    pub(crate) flag: &'static str,
    /// The environment variable: `HAPAX_` and the flag in upper snake case.
    pub(crate) variable: &'static str,
    /// The table of the file.
    pub(crate) table: &'static str,
    /// The key in that table.
    pub(crate) key: &'static str,
    /// The placeholder for the value in the help.
    pub(crate) value: &'static str,
    pub(crate) default: Option<&'static str>,
    pub(crate) is_list: bool,
    /// The short help of the setting, for `-h`. `{schemes}`, `{databases}`, `{answers}`, `{sources}` and `{sinks}`
    /// stand for the URLs of this build.
    pub(crate) help: &'static str,
    /// The rest of the help, for `--help`.
    pub(crate) details: &'static str,
}

impl SettingSpec {
    /// A setting without a default whose key in the file is the name of its flag.
    pub(crate) const fn new(table: &'static str, flag: &'static str, variable: &'static str) -> Self {
        Self { flag, variable, table, key: flag, value: "", default: None, is_list: false, help: "", details: "" }
    }

    pub(crate) const fn key(self, key: &'static str) -> Self {
        Self { key, ..self }
    }

    pub(crate) const fn value(self, value: &'static str) -> Self {
        Self { value, ..self }
    }

    pub(crate) const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The texts of the default: several for a list.
    pub(crate) fn default_texts(&self) -> Option<Vec<String>> {
        let default = self.default?;
        Some(if self.is_list { default.split(',').map(str::to_owned).collect() } else { vec![default.to_owned()] })
    }

    pub(crate) const fn list(self) -> Self {
        Self { is_list: true, ..self }
    }

    pub(crate) const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    pub(crate) const fn details(self, details: &'static str) -> Self {
        Self { details, ..self }
    }
}
