//! Which lines are logged.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Libraries whose logs contain keys, credentials or payloads, and the level that each logs at most. The driver of
/// RabbitMQ warns of each returned event with its payload.
const LEAKY_LIBRARIES: [(&str, LevelFilter); 5] = [
    ("h2", LevelFilter::WARN),
    ("hyper", LevelFilter::WARN),
    ("hyper_util", LevelFilter::WARN),
    ("lapin", LevelFilter::ERROR),
    ("rustls", LevelFilter::WARN),
];

/// A level for all lines, and levels for the lines of single targets.
#[derive(Clone, PartialEq)]
pub(crate) struct LogLevels(pub(crate) Targets);

impl fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogLevels({})", self.0)
    }
}

impl FromStr for LogLevels {
    type Err = anyhow::Error;

    /// Reads a list of `LEVEL` and `TARGET=LEVEL`. Without a bare level, the other targets log at `info`.
    fn from_str(list: &str) -> Result<Self, anyhow::Error> {
        let (mut default, mut targets) = (LevelFilter::INFO, Vec::new());
        for text in list.split(',') {
            match text.split_once('=') {
                None => default = level(text, text)?,
                Some((target, name)) if is_target(target) => targets.push((target, level(name, text)?)),
                Some(_) => return wrong(text),
            }
        }
        let leaky = LEAKY_LIBRARIES.map(|(library, _)| (library, default));
        // The targets come second, because the last level of a target counts.
        let levels = leaky.into_iter().chain(targets).map(|(target, level)| (target, limited(target, level)));
        Ok(Self(Targets::new().with_default(default).with_targets(levels)))
    }
}

/// The level of a target, reduced for the leaky libraries.
fn limited(target: &str, level: LevelFilter) -> LevelFilter {
    let library = target.split("::").next().unwrap_or_default();
    let limit = LEAKY_LIBRARIES.iter().find(|(leaky, _)| *leaky == library);
    limit.map_or(level, |(_, limit)| level.min(*limit))
}

fn level(name: &str, text: &str) -> Result<LevelFilter, anyhow::Error> {
    Ok(match name {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return wrong(text),
    })
}

fn wrong<T>(text: &str) -> Result<T, anyhow::Error> {
    bail!("{text:?} is no level: write off, error, warn, info, debug or trace; or TARGET=LEVEL, hapax_core=debug")
}

/// Whether the text is a path of modules.
fn is_target(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_leaky_library_never_logs_more_than_warnings() {
        for (list, is_warned) in [("trace", true), ("h2=trace,h2::codec=trace", true), ("off", false)] {
            let levels: LogLevels = list.parse().unwrap();
            for library in ["h2", "h2::codec", "hyper", "hyper::proto::h1", "hyper_util", "rustls"] {
                assert_eq!(levels.0.would_enable(library, &Level::WARN), is_warned, "{list} {library}");
                assert!(!levels.0.would_enable(library, &Level::INFO), "{list} {library}");
            }
        }
    }

    #[test]
    fn the_driver_of_rabbitmq_logs_no_warning_because_its_warnings_have_payloads() {
        for (list, is_logged) in [("trace", true), ("lapin=warn,lapin::returned_messages=trace", true), ("off", false)]
        {
            let levels: LogLevels = list.parse().unwrap();
            for target in ["lapin", "lapin::returned_messages"] {
                assert_eq!(levels.0.would_enable(target, &Level::ERROR), is_logged, "{list} {target}");
                assert!(!levels.0.would_enable(target, &Level::WARN), "{list} {target}");
            }
        }
    }

    #[test]
    fn a_target_has_a_level_of_its_own() {
        let levels: LogLevels = "hapax_core=debug,hapax_http=off".parse().unwrap();
        for (target, level, is_logged) in [
            ("hapax_core::telemetry", Level::DEBUG, true),
            ("hapax_core::telemetry", Level::TRACE, false),
            ("hapax_http::answer", Level::ERROR, false),
            ("hapax::access", Level::INFO, true),
            ("hapax::access", Level::DEBUG, false),
        ] {
            assert_eq!(levels.0.would_enable(target, &level), is_logged, "{target} {level}");
        }
    }
}
