//! Where a command finds what it is about: behind the admin API of a process, or in a store.

mod remote;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::Settings;
use hapax::journal::StorePlace;
use hapax::runtime::Tokio;
use hapax_systems::{OpenedStore, StoreUrl};
use http::StatusCode;

use crate::admin::api::audit::INCOMPLETE;
use crate::admin::api::calls::{ApiCall, ShowPolicy};
use crate::admin::api::records::{AnswerForm, RecordDesk};
use crate::admin::api::{AdminApi, ApiError, PolicyDescription, Requester};
use crate::config::audit_file_of;
use crate::serve::exit::CommandError;
use crate::store::answers::FarAnswersConfig;
use crate::store::opening;
use remote::AdminClient;

/// The admin address of a process.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// The admin address of a process that has them: http://127.0.0.1:8081
    #[arg(long, value_name = "URL")]
    admin: Option<http::Uri>,

    /// File with the token that the admin address requires
    #[arg(long, value_name = "FILE", env = "HAPAX_ADMIN_TOKEN_FILE", hide_env_values = true)]
    admin_token_file: Option<PathBuf>,
}

/// Where the records are.
#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The store with the records, as --store of the gateway names it, for users of the library, or if no process runs
    #[arg(long, value_name = "URL", conflicts_with = "admin")]
    store: Option<String>,

    /// Where the gateway keeps large answers, as its --answers names it, to show or remove them, too
    #[arg(long, value_name = "URL", requires = "store")]
    answers: Option<String>,

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

/// A place to which a command sends its calls.
#[derive(Debug)]
pub(crate) struct CalledPlace {
    access: Access,
    /// The flags that name this place, for a command that the operator may run next.
    flags: String,
    /// The store, for errors about it.
    store: Option<StorePlace>,
}

#[derive(Debug)]
enum Access {
    Listener(Box<AdminClient>),
    Store(Box<AdminApi>),
}

/// Where writes leave their events that a command makes without a process.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// File to which every write appends an event [default: that of a worker or relay which the same user runs here]
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    audit_file: Option<PathBuf>,
}

impl AuditArgs {
    /// The place at this URL, which `open` puts into its API.
    pub(crate) fn place(&self, url: &StoreUrl, open: impl FnOnce(AdminApi) -> AdminApi) -> CalledPlace {
        let audit = self.audit_file.clone().or_else(|| audit_file_of(url));
        let api = open(AdminApi::new(PolicyDescription::new("command", ""), audit));
        CalledPlace { access: Access::Store(Box::new(api)), flags: String::new(), store: Some(url.place()) }
    }
}

impl AdminArgs {
    /// The process with this address, if there is one.
    pub(crate) fn open(&self) -> Result<Option<CalledPlace>, CommandError> {
        let open = |url| AdminClient::new(url, self.admin_token_file.as_deref());
        let client = self.admin.as_ref().map(open).transpose()?;
        Ok(client.map(|client| CalledPlace {
            access: Access::Listener(Box::new(client)),
            flags: flags(self.flags()),
            store: None,
        }))
    }

    fn flags(&self) -> [(&'static str, Option<String>); 2] {
        [
            ("--admin", self.admin.as_ref().map(ToString::to_string)),
            ("--admin-token-file", shown(&self.admin_token_file)),
        ]
    }
}

fn shown(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.display().to_string())
}

fn flags(flags: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
    flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", quoted(&value?)))).collect()
}

impl PlaceArgs {
    pub(crate) async fn open(&self) -> Result<CalledPlace, CommandError> {
        if let Some(process) = self.admin.open()? {
            return Ok(process);
        }
        let missing = || CommandError::usage(anyhow!("name the place by --admin URL or --store URL"));
        let url = opening::read_store(self.store.as_ref().ok_or_else(missing)?)?;
        let access = Access::Store(Box::new(self.open_store(&url).await?));
        Ok(CalledPlace { access, flags: self.flags(), store: Some(url.place()) })
    }

    fn flags(&self) -> String {
        let is_named = self.namespace != "default";
        flags([
            ("--store", self.store.as_deref().map(without_password)),
            ("--answers", self.answers.clone()),
            ("--namespace", is_named.then(|| self.namespace.clone())),
            ("--audit-file", shown(&self.audit_file)),
        ])
    }

    async fn open_store(&self, url: &StoreUrl) -> Result<AdminApi, CommandError> {
        let missing = || CommandError::cannot_start(anyhow!("the store has no records; name the one of the gateway"));
        let store = opening::open_existing(url, Arc::new(Tokio::current())).await?.ok_or_else(missing)?;
        let store = self.with_answers(store)?;
        let audit = self.audit_file.clone().or_else(|| audit_file_of(url));
        let records = RecordDesk::new(store, &Settings::default().policy, AnswerForm::Either);
        let policy = PolicyDescription::new("command", &self.namespace);
        Ok(AdminApi { records: Some(records), ..AdminApi::new(policy, audit) })
    }
}

impl PlaceArgs {
    /// The same store, with the place of its large answers if one is named.
    fn with_answers(&self, store: OpenedStore) -> Result<OpenedStore, CommandError> {
        let Some(url) = &self.answers else { return Ok(store) };
        let wrong = |error: anyhow::Error| CommandError::usage(error.context("--answers takes the URL of a bucket"));
        // Answers that an operator writes are small, so the limit is the default of a gateway.
        let config = FarAnswersConfig { url: url.parse().map_err(wrong)?, inline: 64 << 10 };
        Ok(config.around(store, std::iter::empty(), Arc::new(Tokio::current()))?.0)
    }
}

impl CalledPlace {
    /// Makes a call. The inner error is a refusal about its target; a command on many goes on.
    pub(crate) async fn attempt<C: ApiCall>(&self, call: &C) -> Result<Result<C::Answer, ApiError>, CommandError> {
        let answer = match &self.access {
            Access::Listener(client) => client.send(call).await?,
            Access::Store(api) => api.call(&Requester::user(), call).await,
        };
        match answer {
            Err(error) if !is_about_target(&error) => Err(self.failure(error)),
            answered => Ok(answered),
        }
    }

    /// Makes a call whose refusal ends the command.
    pub(crate) async fn ask<C: ApiCall>(&self, call: &C) -> Result<C::Answer, CommandError> {
        self.attempt(call).await?.map_err(|error| self.failure(error))
    }

    pub(crate) async fn namespace(&self) -> Result<String, CommandError> {
        Ok(self.ask(&ShowPolicy {}).await?.namespace)
    }

    /// The error of a command, with the exit code of its kind, and the command that would work here.
    pub(crate) fn failure(&self, error: ApiError) -> CommandError {
        let command = error.command.map_or(String::new(), |command| format!("; run: {command}{}", self.flags));
        let told = match &*error.code {
            "token-required" => anyhow!("the admin address requires a token: add --admin-token-file FILE"),
            "token-reads-only" => {
                anyhow!("{}: name the file of the one that may write by --admin-token-file", error.detail)
            }
            _ => match &self.store {
                Some(store) if error.status == StatusCode::SERVICE_UNAVAILABLE => anyhow!("{store}: {}", error.detail),
                Some(_) | None => anyhow!("{}{command}", error.detail),
            },
        };
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

/// Whether a refusal is about the state of the target.
fn is_about_target(error: &ApiError) -> bool {
    const CODES: [&str; 7] = ["stale", "wrong-state", "not-found", "internal-record", "damaged", "taken", "unreadable"];
    CODES.contains(&&*error.code)
}
