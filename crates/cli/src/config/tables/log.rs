//! `[log]`: which lines are logged, where, and in which format.

use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::serve::logs::LogSettings;
use crate::serve::otlp::CollectorUrl;

pub(crate) const TABLE: &str = "log";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "log", "HAPAX_LOG")
        .key("level")
        .value("LEVELS")
        .default("info")
        .help("Which lines are logged: off, error, warn, info, debug or trace")
        .details("A list such as `info,hapax_core=debug` gives single targets a level of their own."),
    SettingSpec::new(TABLE, "log-format", "HAPAX_LOG_FORMAT")
        .key("format")
        .value("FORMAT")
        .help("Format of the log: text or json [default: text on a terminal, json otherwise]"),
    SettingSpec::new(TABLE, "log-file", "HAPAX_LOG_FILE")
        .key("file")
        .value("FILE")
        .help("File to which the log is appended [default: standard error]")
        .details("SIGHUP opens it again, for instance after logrotate has renamed it."),
];

pub(crate) fn read(values: &Values) -> Result<LogSettings, anyhow::Error> {
    Ok(LogSettings {
        levels: values.one("log", str::parse)?,
        format: values.maybe("log-format", parse::log_format)?,
        file: values.maybe("log-file", parse::path)?,
        collector: values.maybe("otlp", CollectorUrl::parse)?,
    })
}
