//! Where the records are: behind the admin API of a process, or in a store.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::Settings;
use hapax::runtime::Tokio;
use serde_json::{Map, Value};

use super::client::AdminClient;
use crate::admin::audit::AuditFile;
use crate::admin::call::ApiCall;
use crate::admin::records::{AnswerForm, RecordDesk, RecordLifetimes};
use crate::admin::{AdminApi, ApiError, PolicyDescription, Requester};
use crate::commands::CommandError;
use crate::config::audit_file_of;
use crate::store::wiring::{self, StoreUrl, schemes};

/// Where the records are.
#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// The admin address of a gateway or a worker: http://127.0.0.1:8081
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    admin: Option<http::Uri>,

    /// File with the token that the admin address requires
    #[arg(long, value_name = "FILE", requires = "admin", env = "HAPAX_ADMIN_TOKEN_FILE", hide_env_values = true)]
    admin_token_file: Option<PathBuf>,

    /// The store with the records, for users of the library, or if no process runs: sqlite://PATH, redis://HOST or
    /// postgres://HOST/DATABASE
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// The namespace of the service, for --key and for the default audit file [default: default]
    ///
    /// The admin API knows its own. Lists, and writes of many records, are about all namespaces of the store.
    #[arg(long, value_name = "NAME", requires = "store", default_value = "default", hide_default_value = true)]
    namespace: String,

    /// File to which every write appends an event [default: that of a gateway on this store]
    #[arg(long, value_name = "FILE", requires = "store")]
    audit_file: Option<PathBuf>,

    /// Print one JSON object a line
    #[arg(long)]
    pub(super) json: bool,
}

/// The records, opened. Both forms are asked by the same paths.
#[derive(Debug)]
pub(super) enum KeysPlace {
    Listener(Box<AdminClient>),
    Store(Box<AdminApi>),
}

impl PlaceArgs {
    pub(super) async fn open(&self) -> Result<KeysPlace, CommandError> {
        match (&self.admin, &self.store) {
            (Some(url), _) => {
                let client = AdminClient::new(url, self.admin_token_file.as_deref())?;
                Ok(KeysPlace::Listener(Box::new(client)))
            }
            (None, Some(url)) => self.open_store(url).await.map(|api| KeysPlace::Store(Box::new(api))),
            (None, None) => Err(CommandError::usage(anyhow!("name the place by --admin URL or --store URL"))),
        }
    }

    async fn open_store(&self, url: &str) -> Result<AdminApi, CommandError> {
        let wrong = |error: anyhow::Error| CommandError::usage(error.context(format!("--store takes {}", schemes())));
        let url: StoreUrl = url.parse().map_err(wrong)?;
        if url.ends_with_process() {
            return Err(CommandError::usage(anyhow!("memory: has no records of another process; name its store")));
        }
        let missing = || CommandError::cannot_start(anyhow!("the store has no records; name the one of the gateway"));
        let store = wiring::open_existing(&url, Arc::new(Tokio::current())).await?.ok_or_else(missing)?;
        let audit = self.audit_file.clone().or_else(|| audit_file_of(&url, &self.namespace));
        Ok(AdminApi {
            process: "command",
            records: Some(RecordDesk {
                store,
                lifetimes: RecordLifetimes::of(&Settings::default().policy),
                answers: AnswerForm::Either,
            }),
            dead: None,
            outbox: None,
            policy: PolicyDescription::new("command", &self.namespace).into_json(),
            audit: audit.map(AuditFile::new),
        })
    }
}

impl KeysPlace {
    pub(super) async fn get(&self, path: &str, query: &str) -> Result<Value, CommandError> {
        let answer = match self {
            Self::Listener(client) => client.get(path, query).await?,
            Self::Store(api) => {
                let call = ApiCall::read(&path.split('/').collect::<Vec<_>>(), query);
                called(api, call).await
            }
        };
        answer.map_err(failure)
    }

    /// Writes. The inner error is the refusal of one record; a command on many goes on.
    pub(super) async fn post(
        &self,
        path: &str,
        body: Map<String, Value>,
    ) -> Result<Result<Value, ApiError>, CommandError> {
        let answer = match self {
            Self::Listener(client) => client.post(path, body).await?,
            Self::Store(api) => called(api, ApiCall::write(&path.split('/').collect::<Vec<_>>(), body)).await,
        };
        match answer {
            Err(error) if !is_about_record(&error) => Err(failure(error)),
            answered => Ok(answered),
        }
    }

    pub(super) async fn namespace(&self) -> Result<String, CommandError> {
        let policy = self.get("policy", "").await?;
        Ok(policy["namespace"].as_str().unwrap_or_default().to_owned())
    }
}

async fn called(api: &AdminApi, call: Result<ApiCall, ApiError>) -> Result<Value, ApiError> {
    api.handle(&Requester::user(), &call?).await
}

/// Whether a refusal is about the state of one record.
fn is_about_record(error: &ApiError) -> bool {
    matches!(error.code, "stale" | "wrong-state" | "not-found" | "internal-record" | "damaged")
}

/// The error of a command, with the exit code of its kind.
pub(super) fn failure(error: ApiError) -> CommandError {
    let command = error.command.as_ref().map_or(String::new(), |command| format!("; {command}"));
    let told = anyhow!("{}{command}", error.detail);
    match error.status.as_u16() {
        400 | 413 => CommandError::usage(told),
        404 | 409 => CommandError::failed(told),
        _ => CommandError::cannot_start(told),
    }
}
