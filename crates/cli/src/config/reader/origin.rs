use std::fmt;
use std::sync::Arc;

use crate::config::reader::setting::SettingSpec;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static SettingSpec),
    Environment(&'static SettingSpec),
    File(FileLine),
    /// The profile of this name, which the user chose.
    Profile(&'static str),
    /// The user did not give the value.
    Default,
}

/// A line of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileLine {
    pub(crate) file: Arc<str>,
    pub(crate) number: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.number)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(setting) => write!(f, "--{}", setting.flag),
            Self::Environment(setting) => f.write_str(setting.variable),
            Self::File(line) => line.fmt(f),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The texts that were given for one setting, and where. A list has any number of texts, any other setting has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenValue {
    pub(crate) texts: Vec<String>,
    pub(crate) origin: Origin,
}
