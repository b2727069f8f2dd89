//! Which records a command is about.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow};
use hapax::{Identity, Key, OperationId, Scope};

use super::file;
use crate::admin::api::calls::{LARGEST_PAGE, RecordName};
use crate::admin::api::record::RecordState;
use crate::admin::api::records::ListRecords;
use crate::commands::progress::CommandProgress;
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
    /// The record key: 32 hexadecimal digits, their first 8 as logs have them, or the URN from the `instance` of a
    /// problem; or the id of the operation. A part of the digits and an operation are searched for in all records
    #[arg(value_name = "RK", required_unless_present = "key", conflicts_with = "key")]
    rk: Option<NamedRecord>,

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
            (Some(named), _) => named.find(place).await,
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

/// How an operator names a record.
#[derive(Clone, Debug)]
enum NamedRecord {
    Key(RecordName),
    /// The first digits of the key.
    Prefix(String),
    Operation(OperationId),
}

/// The fewest digits of a key: as many as logs have.
const FEWEST_DIGITS: usize = 8;

impl FromStr for NamedRecord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_digits = text.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
        if is_digits && (FEWEST_DIGITS..32).contains(&text.len()) {
            return Ok(Self::Prefix(text.to_owned()));
        }
        match text.parse::<OperationId>() {
            Ok(operation) if text.contains('-') => Ok(Self::Operation(operation)),
            Ok(_) | Err(_) => text.parse().map(Self::Key).map_err(|wrong| {
                format!("{wrong}, or {FEWEST_DIGITS} or more of the first digits, or the id of an operation")
            }),
        }
    }
}

impl NamedRecord {
    async fn find(&self, place: &CalledPlace) -> Result<RecordName, CommandError> {
        let (operation, prefix) = match self {
            Self::Key(rk) => return Ok(*rk),
            Self::Prefix(prefix) => (None, prefix.as_str()),
            Self::Operation(operation) => (Some(*operation), ""),
        };
        let mut ask = ListRecords { operation, limit: Some(LARGEST_PAGE), ..ListRecords::default() };
        let (mut found, mut looked) = (BTreeSet::new(), CommandProgress::of("records looked at"));
        loop {
            let page = place.ask(&ask).await?;
            looked.add(page.records.len());
            let keys = page.records.into_iter().map(|record| record.rk);
            found.extend(keys.filter(|rk| rk.to_string().starts_with(prefix)));
            ask.cursor = page.next;
            if ask.cursor.is_none() {
                break;
            }
        }
        let several = || found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match found.first() {
            Some(rk) if found.len() == 1 => Ok(*rk),
            Some(_) => Err(CommandError::usage(anyhow!("several records begin with {prefix}: {}", several()))),
            None => Err(CommandError::failed(anyhow!("no record has this key or operation; it may have expired"))),
        }
    }
}
