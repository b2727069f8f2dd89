use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, value_parser};

use crate::config::settings::{SETTINGS, Setting};
use crate::config::source::{Given, Source};
use crate::wiring::SCHEMES;

/// What the command line and the environment say, not looked at yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The file that has the rest.
    pub(crate) config: Option<PathBuf>,
    /// Whether to look at it all, and go no further.
    pub(crate) check: bool,
    /// By flag.
    pub(crate) given: BTreeMap<&'static str, Given>,
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
        command.args([config, check]).args(SETTINGS.iter().map(flag))
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
        .help(setting.help.replace("{schemes}", SCHEMES));
    let flag = if setting.many { flag.value_delimiter(',') } else { flag };
    setting.default.into_iter().fold(flag, Arg::default_value)
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

/// What a flag or its variable says; a flag hides its variable. Defaults come after the file, and are not for clap to give.
fn given(matches: &ArgMatches, setting: &'static Setting) -> Option<Given> {
    let source = matches.value_source(setting.flag)?;
    let source = if source == ValueSource::CommandLine {
        Source::Flag(setting)
    } else if source == ValueSource::EnvVariable {
        Source::Environment(setting)
    } else {
        return None;
    };
    let texts = matches.get_many::<String>(setting.flag)?.cloned().collect();
    Some(Given { texts, source })
}
