//! Every setting, in the order in which the help and `--check` list them. Each table of the file has a module.

pub(super) mod admin;
pub(super) mod gateway;
pub(super) mod log;
mod otlp;
pub(super) mod policy;
pub(super) mod profile;
pub(super) mod relay;
pub(super) mod route;
pub(super) mod secrets;
pub(super) mod store;
pub(super) mod worker;

use crate::config::reader::setting::SettingSpec;

/// The tables of the file that hold settings, and the headings above their flags in the help.
pub(crate) const TABLES: [(&str, &str); 9] = [
    (gateway::TABLE, "[gateway] of the file"),
    (worker::TABLE, "[worker] of the file"),
    (store::TABLE, "[store] of the file"),
    (policy::TABLE, "[policy] of the file; a [[route]] may override it, with `protect` in place of `key`"),
    (secrets::TABLE, "[secrets] of the file"),
    (relay::TABLE, "[relay] of the file; endpoints of webhooks are its tables [relay.endpoints.NAME]"),
    (admin::TABLE, "[admin] of the file"),
    (log::TABLE, "[log] of the file"),
    (otlp::TABLE, "[otlp] of the file"),
];

/// The settings that each route may override: those of `[policy]`, and who owns a key.
pub(crate) fn per_route() -> impl Iterator<Item = &'static SettingSpec> {
    of_table(policy::TABLE).chain(of_table(gateway::TABLE).filter(|setting| setting.flag == "tenant"))
}

/// A command with settings. All of them share one file, in which each reads the tables that concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Configured {
    Gateway,
    Worker,
    Relay,
}

impl Configured {
    /// Returns the settings of this command.
    pub(crate) fn settings(self) -> impl Iterator<Item = &'static SettingSpec> {
        all().filter(move |setting| self.has(setting))
    }

    /// Whether this command has the setting. A setting in the table of one command may have the flag of another one.
    pub(crate) fn has(self, setting: &SettingSpec) -> bool {
        match self {
            Self::Gateway => ![worker::TABLE, relay::TABLE].contains(&setting.table),
            Self::Worker => match setting.table {
                gateway::TABLE | relay::TABLE => false,
                policy::TABLE | store::TABLE => worker::SHARED.contains(&setting.flag),
                _ => true,
            },
            Self::Relay => [relay::TABLE, admin::TABLE, log::TABLE, otlp::TABLE].contains(&setting.table),
        }
    }
}

/// Returns every setting.
pub(crate) fn all() -> impl Iterator<Item = &'static SettingSpec> {
    // A key in the wrong table is guessed to belong into the first table that has it: a lease into [policy].
    let tables = [gateway::SETTINGS, worker::SETTINGS, store::SETTINGS, secrets::SETTINGS, policy::SETTINGS];
    tables.into_iter().chain([relay::SETTINGS, admin::SETTINGS, log::SETTINGS, otlp::SETTINGS]).flatten()
}

/// Returns the settings of one table.
pub(crate) fn of_table(table: &str) -> impl Iterator<Item = &'static SettingSpec> {
    all().filter(move |setting| setting.table == table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_the_same_name_as_flag_variable_and_key() {
        for setting in all() {
            let variable = format!("HAPAX_{}", setting.flag.to_uppercase().replace('-', "_"));
            assert_eq!(setting.variable, variable);
            assert!(TABLES.iter().any(|(table, _)| *table == setting.table), "{}", setting.flag);
            let is_same_key = |other: &&SettingSpec| (other.table, other.key) == (setting.table, setting.key);
            assert_eq!(all().filter(is_same_key).count(), 1, "{}", setting.flag);
            // A user who knows the flag can guess the key, and the other way round.
            assert!(setting.flag.ends_with(setting.key) || setting.flag == setting.table, "{}", setting.flag);
            assert!(!setting.help.is_empty() && !setting.value.is_empty(), "{}", setting.flag);
        }
    }

    #[test]
    fn a_command_has_each_flag_once() {
        for command in [Configured::Gateway, Configured::Worker, Configured::Relay] {
            for setting in command.settings() {
                let same = command.settings().filter(|other| other.flag == setting.flag).count();
                assert_eq!(same, 1, "{command:?} --{}", setting.flag);
            }
        }
        for shared in worker::SHARED {
            assert!(Configured::Worker.settings().any(|setting| setting.flag == shared), "{shared}");
        }
    }
}
