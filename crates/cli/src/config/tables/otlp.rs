//! `[otlp]`: where traces and metrics are exported to.

use crate::config::reader::setting::SettingSpec;

pub(crate) const TABLE: &str = "otlp";

pub(crate) const SETTINGS: &[SettingSpec] = &[SettingSpec::new(TABLE, "otlp", "HAPAX_OTLP")
    .key("url")
    .value("URL")
    .help("Collector of OpenTelemetry that gets traces and metrics, for instance http://127.0.0.1:4318")
    .details(
        "OTLP in HTTP with protobuf; only in a build with the feature otlp. Without it, the standard variables count, \
         such as OTEL_EXPORTER_OTLP_ENDPOINT. Without both, nothing is exported.",
    )];
