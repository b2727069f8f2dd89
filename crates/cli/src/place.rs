//! Where the records are: behind the admin API of a process, or in a store.

mod remote;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::Settings;
use hapax::runtime::Tokio;
use serde_json::{Map, Value};

use crate::admin::api::audit::INCOMPLETE;
use crate::admin::api::call::ApiCall;
use crate::admin::api::records::{AnswerForm, RecordDesk};
use crate::admin::api::{AdminApi, ApiError, PolicyDescription, Requester};
use crate::config::audit_file_of;
use crate::serve::exit::CommandError;
use crate::store::wiring::{self, StoreUrl, schemes};
use remote::AdminClient;

/// Where the records are.
#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
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

    /// The namespace of the service, for --key [default: default]
    ///
    /// The admin API knows its own. Lists, and writes of many records, are about all namespaces of the store.
    #[arg(long, value_name = "NAME", requires = "store", default_value = "default", hide_default_value = true)]
    namespace: String,

    /// File to which every write appends an event [default: that of a gateway which the same user runs on this store]
    #[arg(long, value_name = "FILE", requires = "store")]
    audit_file: Option<PathBuf>,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The records, opened.
#[derive(Debug)]
pub(crate) struct KeysPlace {
    access: RecordAccess,
    /// The flags that name this place, for a command that the operator may run next.
    flags: String,
}

/// Both forms are asked by the same paths.
#[derive(Debug)]
enum RecordAccess {
    Listener(Box<AdminClient>),
    Store(Box<AdminApi>),
}

impl PlaceArgs {
    pub(crate) async fn open(&self) -> Result<KeysPlace, CommandError> {
        let access = match (&self.admin, &self.store) {
            (Some(url), _) => {
                RecordAccess::Listener(Box::new(AdminClient::new(url, self.admin_token_file.as_deref())?))
            }
            (None, Some(url)) => RecordAccess::Store(Box::new(self.open_store(url).await?)),
            (None, None) => {
                return Err(CommandError::usage(anyhow!("name the place by --admin URL or --store URL")));
            }
        };
        Ok(KeysPlace { access, flags: self.flags() })
    }

    fn flags(&self) -> String {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let is_named = self.namespace != "default";
        let flags = [
            ("--admin", self.admin.as_ref().map(ToString::to_string)),
            ("--admin-token-file", path(&self.admin_token_file)),
            ("--store", self.store.as_deref().map(without_password)),
            ("--namespace", is_named.then(|| self.namespace.clone())),
            ("--audit-file", path(&self.audit_file)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", quoted(&value?))));
        given.collect()
    }

    async fn open_store(&self, url: &str) -> Result<AdminApi, CommandError> {
        let wrong = |error: anyhow::Error| CommandError::usage(error.context(format!("--store takes {}", schemes())));
        let url: StoreUrl = url.parse().map_err(wrong)?;
        if url.ends_with_process() {
            return Err(CommandError::usage(anyhow!("memory: has no records of another process; name its store")));
        }
        let missing = || CommandError::cannot_start(anyhow!("the store has no records; name the one of the gateway"));
        let store = wiring::open_existing(&url, Arc::new(Tokio::current())).await?.ok_or_else(missing)?;
        let audit = self.audit_file.clone().or_else(|| audit_file_of(&url));
        let records = RecordDesk::new(store, &Settings::default().policy, AnswerForm::Either);
        let policy = PolicyDescription::new("command", &self.namespace);
        Ok(AdminApi { records: Some(records), ..AdminApi::new(policy, audit) })
    }
}

impl KeysPlace {
    pub(crate) async fn get(&self, path: &str, query: &str) -> Result<Value, CommandError> {
        let answer = match &self.access {
            RecordAccess::Listener(client) => client.get(path, query).await?,
            RecordAccess::Store(api) => {
                let call = ApiCall::read(&path.split('/').collect::<Vec<_>>(), query);
                called(api, call).await
            }
        };
        answer.map_err(|error| self.failure(error))
    }

    /// Writes. The inner error is the refusal of one record; a command on many goes on.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Map<String, Value>,
    ) -> Result<Result<Value, ApiError>, CommandError> {
        let answer = match &self.access {
            RecordAccess::Listener(client) => client.post(path, body).await?,
            RecordAccess::Store(api) => called(api, ApiCall::write(&path.split('/').collect::<Vec<_>>(), body)).await,
        };
        match answer {
            Err(error) if !is_about_record(&error) => Err(self.failure(error)),
            answered => Ok(answered),
        }
    }

    pub(crate) async fn namespace(&self) -> Result<String, CommandError> {
        let policy = self.get("policy", "").await?;
        Ok(policy["namespace"].as_str().unwrap_or_default().to_owned())
    }

    /// The error of a command, with the exit code of its kind, and the command that would work here.
    pub(crate) fn failure(&self, error: ApiError) -> CommandError {
        let command = error.command.map_or(String::new(), |command| format!("; run: {command}{}", self.flags));
        let told = anyhow!("{}{command}", error.detail);
        match error.status.as_u16() {
            400 | 413 => CommandError::usage(told),
            404 | 409 => CommandError::failed(told),
            _ if error.code == INCOMPLETE => CommandError::failed(told),
            _ => CommandError::cannot_start(told),
        }
    }
}

/// A URL with `***` in place of its password.
fn without_password(url: &str) -> String {
    let hidden = || {
        let (scheme, rest) = url.split_once("://")?;
        let (user, host) = rest.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}:***@{host}"))
    };
    hidden().unwrap_or_else(|| url.to_owned())
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%,+".contains(letter);
    if word.chars().all(is_plain) && !word.is_empty() {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

async fn called(api: &AdminApi, call: Result<ApiCall, ApiError>) -> Result<Value, ApiError> {
    api.handle(&Requester::user(), &call?).await
}

/// Whether a refusal is about the state of one record.
fn is_about_record(error: &ApiError) -> bool {
    matches!(error.code, "stale" | "wrong-state" | "not-found" | "internal-record" | "damaged")
}
