//! `[admin]`: who may write through the admin API, and where that is noted. The address is in the table of the command.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use hapax_systems::StoreUrl;

use crate::admin::api::audit::FILE_NAME;
use crate::config::reader::parse;
use crate::config::reader::setting::SettingSpec;
use crate::config::reader::values::Values;
use crate::config::tables::secrets::AdminToken;
use crate::config::tables::store;

pub(crate) const TABLE: &str = "admin";

pub(crate) const SETTINGS: &[SettingSpec] = &[
    SettingSpec::new(TABLE, "admin-write-token-file", "HAPAX_ADMIN_WRITE_TOKEN_FILE")
        .key("write-token-file")
        .value("FILE")
        .help("File with the token that may write through the admin API: 16 or more visible characters")
        .details(
            "With this file or --admin-token-file, every path but /healthz, /readyz and the files of the dashboard \
             requires one of the two tokens, and only this one writes. Without both, every client on this host may \
             read and write.",
        ),
    SettingSpec::new(TABLE, "audit-file", "HAPAX_AUDIT_FILE")
        .value("FILE")
        .help("File to which every write through the admin API appends an event")
        .details(
            "Default: audit.jsonl in --data-dir; for a relay, in the directory that a gateway on its database would \
             have. Without a file, as with memory:, the API only reads.",
        ),
];

/// The admin listener: its address, who may ask, and the audit file.
#[derive(Clone, Debug)]
pub(crate) struct AdminConfig {
    pub(crate) listen: SocketAddr,
    /// The token that the address requires, except for health.
    pub(crate) token: Option<AdminToken>,
    /// The token that may write, too.
    pub(crate) write_token: Option<AdminToken>,
    /// The names and addresses under which the address may be asked, beside `localhost` and loopback addresses.
    pub(crate) hosts: Vec<String>,
    /// None if nothing can be written.
    pub(crate) audit_file: Option<PathBuf>,
}

impl AdminConfig {
    /// Reads the settings. `data_dir` is the directory of the process.
    pub(crate) fn read(values: &Values, data_dir: Option<PathBuf>) -> Result<Self, anyhow::Error> {
        let token = |flag| values.maybe(flag, |path| AdminToken::read(path.as_ref()));
        let chosen = values.maybe("audit-file", parse::path)?;
        let (reads, writes) = (token("admin-token-file")?, token("admin-write-token-file")?);
        if reads.as_ref().zip(writes.as_ref()).is_some_and(|(reads, writes)| reads.is_same(writes)) {
            bail!("admin-token-file and admin-write-token-file hold one token, so that every reader could write");
        }
        Ok(Self {
            listen: values.one("admin", parse::address)?,
            token: reads,
            write_token: writes,
            hosts: values.list("admin-host", parse::host_name)?,
            audit_file: chosen.or_else(|| audit_file(data_dir)),
        })
    }
}

/// The audit file in the directory of a process.
pub(crate) fn audit_file(data_dir: Option<PathBuf>) -> Option<PathBuf> {
    data_dir.map(|directory| directory.join(FILE_NAME))
}

/// The audit file of a process with this store that keeps no other state.
pub(crate) fn audit_file_of(store: &StoreUrl) -> Option<PathBuf> {
    audit_file(store::default_data_dir(store).ok().flatten())
}
