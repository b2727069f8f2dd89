use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, value_parser};
use hapax_systems::{AnswersUrl, SinkUrl, SourceUrl, StoreUrl};

use crate::config::reader::file::ConfigFile;
use crate::config::reader::guess::nearest;
use crate::config::reader::origin::{GivenValue, Origin};
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::ByFlag;
use crate::config::tables::{Configured, TABLES, all};

/// A command whose flags are its settings.
pub(crate) trait HasFlags {
    const COMMAND: Configured;
    /// What `--check` does.
    const CHECK_HELP: &str =
        "Check the configuration, print every value with its origin, and exit without opening anything";
    /// The end of the help.
    const AFTER_HELP: &str;
}

/// The values on the command line of a command and in the environment, not parsed yet.
#[derive(Debug)]
pub(crate) struct Flags<C> {
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// Whether to check the configuration and exit.
    pub(crate) check: bool,
    pub(crate) given: ByFlag,
    pub(crate) command: PhantomData<C>,
}

impl<C> Default for Flags<C> {
    fn default() -> Self {
        Self { config: None, check: false, given: ByFlag::new(), command: PhantomData }
    }
}

impl<C: HasFlags> Flags<C> {
    /// Reads the file that the flags name, if they name one.
    pub(crate) fn file(&self) -> Result<ConfigFile, anyhow::Error> {
        let read = |path: &PathBuf| ConfigFile::read(path, C::COMMAND);
        Ok(self.config.as_ref().map(read).transpose()?.unwrap_or_default())
    }
}

impl<C: HasFlags> clap::Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .env("HAPAX_CONFIG")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("TOML file with settings, and with routes that override them")
            .long_help(
                "TOML file with settings, and with routes that override them\n\n\
                 A flag wins over a variable, and a variable over the file.",
            );
        let check = Arg::new(CHECK).long(CHECK).action(ArgAction::SetTrue).help(C::CHECK_HELP);
        command.args([config, check]).args(C::COMMAND.settings().map(flag)).after_help(C::AFTER_HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

const CONFIG: &str = "config";
const CHECK: &str = "check";

fn flag(setting: &'static SettingSpec) -> Arg {
    let action = if setting.is_list { ArgAction::Append } else { ArgAction::Set };
    let flag = Arg::new(setting.flag)
        .long(setting.flag)
        .env(setting.variable)
        // The help must not show a password in a variable.
        .hide_env_values(true)
        .value_name(setting.value)
        .action(action)
        .help(help(setting))
        .long_help(long_help(setting))
        .help_heading(heading(setting));
    let flag = if setting.is_list { flag.value_delimiter(',') } else { flag };
    setting.default.into_iter().fold(flag, Arg::default_value)
}

pub(in crate::config) fn help(setting: &SettingSpec) -> String {
    let help = setting.help.replace("{schemes}", &StoreUrl::forms()).replace("{sources}", &SourceUrl::forms());
    let help = help.replace("{sinks}", &SinkUrl::forms()).replace("{databases}", &StoreUrl::database_forms());
    let help = help.replace("{answers}", &AnswersUrl::forms());
    if setting.key == setting.flag { help } else { format!("{help} [file: {}]", setting.key) }
}

fn long_help(setting: &SettingSpec) -> String {
    if setting.details.is_empty() { help(setting) } else { format!("{}\n\n{}", help(setting), setting.details) }
}

/// Groups the flags by the tables of the file.
fn heading(setting: &SettingSpec) -> Option<&'static str> {
    TABLES.into_iter().find(|(table, _)| *table == setting.table).map(|(_, heading)| heading)
}

impl<C: HasFlags> clap::FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = C::COMMAND.settings().filter_map(|setting| Some((setting.flag, given(matches, setting)?)));
        Ok(Self {
            config: matches.get_one(CONFIG).cloned(),
            check: matches.get_flag(CHECK),
            given: given.collect(),
            command: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the variables that are probably mistyped, each with a guess of the one that was meant. They are not refused:
/// a variable with this prefix may belong to another program.
pub(crate) fn mistyped(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let known: Vec<_> = all().map(|setting| setting.variable).chain(OTHERS).collect();
    let guess = |(name, _): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| !known.contains(&name.as_str()))?;
        let suffixes = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
        let meant = nearest(name.strip_prefix(PREFIX)?, suffixes)?;
        Some((name, format!("{PREFIX}{meant}")))
    };
    variables.filter_map(guess).collect()
}

const PREFIX: &str = "HAPAX_";
const OTHERS: [&str; 1] = ["HAPAX_CONFIG"];

/// Returns the value of a flag or, without one, of its variable. A default from clap is ignored, because a value in the
/// file takes precedence over it.
fn given(matches: &ArgMatches, setting: &'static SettingSpec) -> Option<GivenValue> {
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
    fn a_mistyped_variable_is_reported_with_a_guess() {
        let names =
            ["HAPAX_LEESE", "HAPAX_LEASE", "HAPAX_CONFIG", "HAPAX_PORT_8080_TCP_ADDR", "LEESE", "HAPAX_KEYGRAMMAR"];
        let reported = mistyped(names.into_iter().map(|name| (name.into(), OsString::new())));
        let pair = |name: &str, meant: &str| (name.to_owned(), meant.to_owned());
        assert_eq!(reported, [pair("HAPAX_LEESE", "HAPAX_LEASE"), pair("HAPAX_KEYGRAMMAR", "HAPAX_KEY_GRAMMAR")]);
    }
}
