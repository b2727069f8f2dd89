use std::fmt;
use std::sync::Arc;

use crate::config::reader::settings::Setting;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static Setting),
    Environment(&'static Setting),
    File(FileLine),
    /// Nobody gave it.
    Default,
}

/// A line of the file.
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
            Self::Default => f.write_str("default"),
        }
    }
}

/// What was given for one setting, and where. A list has any number of texts, everything else one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenValue {
    pub(crate) texts: Vec<String>,
    pub(crate) origin: Origin,
}
