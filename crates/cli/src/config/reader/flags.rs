use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, value_parser};

use crate::config::reader::guess::nearest;
use crate::config::reader::origin::{GivenValue, Origin};
use crate::config::reader::settings::{SETTINGS, Setting, TABLES};
use crate::gateway::limits;
use crate::store::wiring::SCHEMES;

/// What the command line and the environment say, not looked at yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The file that has the rest.
    pub(crate) config: Option<PathBuf>,
    /// Whether to look at it all, and go no further.
    pub(crate) check: bool,
    /// By flag.
    pub(crate) given: BTreeMap<&'static str, GivenValue>,
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .env("HAPAX_CONFIG")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(
                "A TOML file with the values that no flag and no variable gives, and with routes of their own policy",
            );
        let check = Arg::new(CHECK)
            .long(CHECK)
            .action(ArgAction::SetTrue)
            .help("Looks at the configuration, prints every value and where it came from, and opens nothing");
        command.args([config, check]).args(SETTINGS.iter().map(flag)).after_help(limits::HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

const CONFIG: &str = "config";
const CHECK: &str = "check";

fn flag(setting: &'static Setting) -> Arg {
    let action = if setting.many { ArgAction::Append } else { ArgAction::Set };
    let flag = Arg::new(setting.flag)
        .long(setting.flag)
        .env(setting.variable)
        // A value may hold a password.
        .hide_env_values(true)
        .value_name(setting.value)
        .action(action)
        .help(help(setting))
        .help_heading(heading(setting));
    let flag = if setting.many { flag.value_delimiter(',') } else { flag };
    setting.default.into_iter().fold(flag, Arg::default_value)
}

fn help(setting: &Setting) -> String {
    let help = setting.help.replace("{schemes}", SCHEMES);
    if setting.key == setting.flag { help } else { format!("{help} [in the file: {}]", setting.key) }
}

/// Flags are listed as they are in the file.
fn heading(setting: &Setting) -> Option<&'static str> {
    TABLES.into_iter().find(|(table, _)| *table == setting.table).map(|(_, heading)| heading)
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = SETTINGS.iter().filter_map(|setting| Some((setting.flag, given(matches, setting)?)));
        Ok(Self { config: matches.get_one(CONFIG).cloned(), check: matches.get_flag(CHECK), given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The variables that are nearly those of a setting, each with the one that was probably meant. Not refused: a variable of that
/// prefix may be another program's.
pub(crate) fn mistyped(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let known: Vec<_> = SETTINGS.iter().map(|setting| setting.variable).chain(OTHERS).collect();
    let guess = |(name, _): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| !known.contains(&name.as_str()))?;
        let suffixes = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
        let meant = nearest(name.strip_prefix(PREFIX)?, suffixes)?;
        Some((name, format!("{PREFIX}{meant}")))
    };
    variables.filter_map(guess).collect()
}

const PREFIX: &str = "HAPAX_";
const OTHERS: [&str; 2] = ["HAPAX_CONFIG", "HAPAX_LOG"];

/// What a flag or its variable says; a flag hides its variable. Defaults come after the file, and are not for clap to give.
fn given(matches: &ArgMatches, setting: &'static Setting) -> Option<GivenValue> {
    let origin = matches.value_source(setting.flag)?;
    let origin = if origin == ValueSource::CommandLine {
        Origin::Flag(setting)
    } else if origin == ValueSource::EnvVariable {
        Origin::Environment(setting)
    } else {
        return None;
    };
    let texts = matches.get_many::<String>(setting.flag)?.cloned().collect();
    Some(GivenValue { texts, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_nearly_one_of_ours_is_noticed() {
        let names =
            ["HAPAX_LEESE", "HAPAX_LEASE", "HAPAX_CONFIG", "HAPAX_PORT_8080_TCP_ADDR", "LEESE", "HAPAX_KEYGRAMMAR"];
        let told = mistyped(names.into_iter().map(|name| (name.into(), OsString::new())));
        let pair = |name: &str, meant: &str| (name.to_owned(), meant.to_owned());
        assert_eq!(told, [pair("HAPAX_LEESE", "HAPAX_LEASE"), pair("HAPAX_KEYGRAMMAR", "HAPAX_KEY_GRAMMAR")]);
    }
}
