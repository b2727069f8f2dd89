//! Every setting, in the order in which the help and `--check` list them.

use crate::config::reader::setting::SettingSpec;
use crate::config::{gateway, log, policy, secrets, store};

/// The tables of the file that hold settings, and the headings above their flags in the help.
pub(crate) const TABLES: [(&str, &str); 5] = [
    (gateway::TABLE, "[gateway] of the file"),
    (store::TABLE, "[store] of the file"),
    (policy::TABLE, "[policy] of the file; a [[route]] may override it, with `protect` in place of `key`"),
    (secrets::TABLE, "[secrets] of the file"),
    (log::TABLE, "[log] of the file"),
];

/// The table whose settings each route may override.
pub(crate) const PER_ROUTE: &str = policy::TABLE;

/// Returns every setting.
pub(crate) fn all() -> impl Iterator<Item = &'static SettingSpec> {
    [gateway::SETTINGS, store::SETTINGS, secrets::SETTINGS, policy::SETTINGS, log::SETTINGS].into_iter().flatten()
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
}
