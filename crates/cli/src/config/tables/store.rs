//! `[store]`: where records are kept, and where answers wait that the store has not confirmed.

mod state_directory;

use std::path::PathBuf;

use hapax_systems::{AnswersUrl, StoreUrl};

use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::store::answers::FarAnswersConfig;

pub(crate) const TABLE: &str = "store";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "store", "HAPAX_STORE")
        .key("url")
        .value("URL")
        .default("sqlite://hapax.db")
        .help("Where records are kept: {schemes}")
        .details(
            "memory: loses all records when the process exits. Each record takes about 500 bytes and its answer; \
             from 1 GiB on, new keys get 503.",
        ),
    SettingSpec::new(TABLE, "answers", "HAPAX_ANSWERS")
        .value("URL")
        .help("Where answers above --inline are kept, instead of in their records: {answers} [default: none]")
        .details(
            "Every gateway on the same store needs the same bucket. The bucket removes old answers by its lifecycle \
             rules. Parameters: ?region=NAME, &endpoint=URL of a service other than AWS or Google, &ca=FILE, \
             &timeout=SECONDS. The credentials come from the usual places of AWS or Google.",
        ),
    SettingSpec::new(TABLE, "inline", "HAPAX_INLINE")
        .value("BYTES")
        .default("64KiB")
        .help("Largest answer that stays in its record, with --answers"),
    SettingSpec::new(TABLE, "store-timeout", "HAPAX_STORE_TIMEOUT")
        .key("timeout")
        .value("DURATION")
        .default("1s")
        .help("Timeout of one call to the store; at most --lease"),
    SettingSpec::new(TABLE, "namespace", "HAPAX_NAMESPACE")
        .value("NAME")
        .default("default")
        .help("Name of the service; services that share a store need different namespaces"),
    SettingSpec::new(TABLE, "data-dir", "HAPAX_DATA_DIR")
        .value("DIRECTORY")
        .help("Directory for answers that the store did not confirm; one for each store")
        .details(
            "Default: FILE.spill beside a SQLite file; none for memory:; \
             a folder in ${XDG_STATE_HOME:-~/.local/state}/hapax for every other store, named after its kind and \
             place. Answers for another store are left alone; `hapax journal adopt` records them. \
             The answers are recorded when the store works again, also after a restart.",
        ),
];

/// Reads where large answers are kept.
pub(crate) fn answers(values: &Values) -> Result<Option<FarAnswersConfig>, anyhow::Error> {
    let inline = values.one("inline", parse::bytes)?;
    let url: Option<AnswersUrl> = values.maybe("answers", str::parse)?;
    Ok(url.map(|url| FarAnswersConfig { url, inline }))
}

/// Reads the directory for answers that the store did not confirm, or picks the default one.
pub(crate) fn data_dir(values: &Values, store: &StoreUrl) -> Result<Option<PathBuf>, anyhow::Error> {
    match values.maybe("data-dir", parse::path)? {
        Some(chosen) => Ok(Some(chosen)),
        None => default_data_dir(store),
    }
}

/// The directory that a process with this store has by default.
pub(crate) fn default_data_dir(store: &StoreUrl) -> Result<Option<PathBuf>, anyhow::Error> {
    match store.data_dir() {
        None if !store.ends_with_process() => state_directory::default_path(&store.place(), std::env::var_os).map(Some),
        beside_or_none => Ok(beside_or_none),
    }
}
