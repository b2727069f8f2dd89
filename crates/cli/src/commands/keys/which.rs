//! Which records a command is about.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use hapax::{Identity, Key, Scope};

use super::file;
use crate::admin::api::calls::RecordName;
use crate::admin::api::record::RecordState;
use crate::admin::api::records::ListRecords;
use crate::config::secret_identity;
use crate::files;
use crate::place::CalledPlace;
use crate::serve::exit::CommandError;

/// Which records a list has, and which ones are written many at once.
#[derive(Debug, clap::Args)]
pub(super) struct ListFilter {
    /// Only records in this state
    #[arg(long, value_name = "STATE")]
    pub(super) state: Option<RecordState>,

    /// Only records that were neither written nor renewed for this long, for instance 10min
    #[arg(long, value_name = "DURATION")]
    pub(super) older_than: Option<humantime::Duration>,
}

impl ListFilter {
    pub(super) fn ask(&self) -> ListRecords {
        ListRecords { state: self.state, older_than: self.older_than, ..ListRecords::default() }
    }
}

/// One record, by its own key or by that of the client.
#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// The record key: 32 hexadecimal digits, or the URN from the `instance` of a problem
    #[arg(value_name = "RK", required_unless_present = "key", conflicts_with = "key")]
    rk: Option<RecordName>,

    /// The key that the client sent
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// The tenant of the client, where a header names it
    #[arg(long, value_name = "TENANT", requires = "key", conflicts_with = "authorization")]
    tenant: Option<String>,

    /// A file with the client's Authorization field, where that names the tenant: @FILE
    #[arg(long, value_name = "@FILE", requires = "key", value_parser = file)]
    authorization: Option<PathBuf>,

    /// The file with the secret of the namespace, if it has one
    #[arg(long, value_name = "FILE", requires = "key")]
    secrets: Option<PathBuf>,
}

impl KeyArgs {
    /// The record key. One that follows from the client's key needs the namespace, which the admin API knows.
    pub(super) async fn record_key(&self, place: &CalledPlace) -> Result<RecordName, CommandError> {
        match (&self.rk, &self.key) {
            (Some(rk), _) => Ok(*rk),
            (None, Some(key)) => {
                let namespace = place.namespace().await?;
                self.derive(key, &namespace).map_err(CommandError::usage)
            }
            (None, None) => Err(CommandError::usage(anyhow!("name a record key, or --key with --tenant"))),
        }
    }

    fn derive(&self, key: &str, namespace: &str) -> Result<RecordName, anyhow::Error> {
        let identity = self.secrets.as_deref().map(secret_identity).transpose().context("--secrets")?;
        let identity = identity.unwrap_or_else(Identity::plain);
        let scope = match (&self.tenant, &self.authorization) {
            (Some(tenant), _) => Scope::tenant(namespace, tenant)?,
            (None, Some(path)) => {
                let credential = files::read(path).context("--authorization")?;
                Scope::tenant(namespace, identity.tenant_of(credential.trim_ascii()))?
            }
            (None, None) => Scope::untenanted(namespace)?,
        };
        Ok(RecordName(identity.record_key(&scope, &Key::new(key)?)))
    }
}
