//! The usual places of Google, and the files that they have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hapax_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::credentials::AccessToken;
use super::exchange::{TokenExchange, unusable};
use crate::files;

/// The host of the metadata server.
const METADATA: &str = "metadata.google.internal";

/// Where a user is exchanged for a token.
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";

/// The usual places, of which the first one that exists counts.
pub(super) struct GooglePlaces {
    /// The file that is named or usual.
    pub(super) file: Option<PathBuf>,
    /// The host of the metadata server, if it is not the usual one.
    pub(super) metadata: Option<String>,
    pub(super) exchange: TokenExchange,
}

/// The file that the environment names, or that the Google Cloud CLI writes. A named one need not exist.
pub(super) fn file_of_environment() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = variable("GOOGLE_APPLICATION_CREDENTIALS") {
        return Some(named);
    }
    let folder = variable("CLOUDSDK_CONFIG").or_else(|| Some(variable("HOME")?.join(".config/gcloud")));
    folder.map(|folder| folder.join("application_default_credentials.json")).filter(|file| file.exists())
}

/// A file with credentials.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum CredentialFile {
    ServiceAccount(ServiceKey),
    AuthorizedUser(AuthorizedUser),
    ExternalAccount(ExternalAccount),
    ImpersonatedServiceAccount(Impersonated),
}

/// The key of a service account.
#[derive(Deserialize)]
pub(super) struct ServiceKey {
    pub(super) client_email: String,
    #[serde(default)]
    pub(super) private_key_id: String,
    /// PEM.
    pub(super) private_key: String,
    #[serde(default = "token_url")]
    pub(super) token_uri: String,
}

/// A user who has logged in.
#[derive(Deserialize)]
pub(super) struct AuthorizedUser {
    pub(super) client_id: String,
    pub(super) client_secret: String,
    pub(super) refresh_token: String,
    #[serde(default = "token_url")]
    pub(super) token_uri: String,
}

/// An identity of another provider, for workload identity federation.
#[derive(Deserialize)]
pub(super) struct ExternalAccount {
    pub(super) audience: String,
    pub(super) subject_token_type: String,
    pub(super) token_url: String,
    pub(super) credential_source: SubjectSource,
    pub(super) service_account_impersonation_url: Option<String>,
}

/// Where the token of the other provider is.
#[derive(Deserialize)]
pub(super) struct SubjectSource {
    pub(super) file: Option<PathBuf>,
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) format: SubjectFormat,
}

/// How the token of the other provider is written.
#[derive(Default, Deserialize)]
pub(super) struct SubjectFormat {
    /// The field of a JSON object. None: the whole text is the token.
    pub(super) subject_token_field_name: Option<String>,
}

/// A service account as which somebody else acts.
#[derive(Deserialize)]
pub(super) struct Impersonated {
    pub(super) service_account_impersonation_url: String,
    pub(super) source_credentials: Box<CredentialFile>,
}

fn token_url() -> String {
    TOKEN_URL.to_owned()
}

impl GooglePlaces {
    /// The token of the first place that exists.
    ///
    /// # Errors
    /// `Unusable` if a file cannot be used or is refused, `NotApplied` if a place cannot be asked now.
    pub(super) async fn find(&self) -> Result<AccessToken> {
        match &self.file {
            Some(file) => self.exchange.token(&read(file)?).await,
            None => self.exchange.metadata_token(self.metadata.as_deref().unwrap_or(METADATA)).await,
        }
    }
}

/// Reads a file with credentials.
fn read(file: &Path) -> Result<CredentialFile> {
    let named = |error: Error| {
        unusable(format!("the credentials for Google Cloud in {} cannot be used: {error}", file.display()))
    };
    let text = files::read_text(file).map_err(named)?;
    // The text of the error of the parser may quote a value.
    let wrong = |_| unusable("the file is not of a type that is known, or lacks a field");
    let read = serde_json::from_str(&text).map_err(wrong).map_err(named)?;
    // The configuration of an external identity has no secret.
    if !matches!(read, CredentialFile::ExternalAccount(_)) {
        files::check_secret(file).map_err(named)?;
    }
    Ok(read)
}

impl SubjectSource {
    /// The token in this text.
    pub(super) fn read(&self, text: &str) -> Result<String> {
        let Some(field) = &self.format.subject_token_field_name else { return Ok(text.trim().to_owned()) };
        let found: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        let token = found.get(field).and_then(|token| token.as_str()).map(str::to_owned);
        token.ok_or_else(|| {
            Error::new(ErrorKind::NotApplied, "the token of the other provider is not where the file says")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_without_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.json");
        let user = r#"{"type":"authorized_user","client_id":"i","client_secret":"hush","refresh_token":"hush"}"#;
        for (content, mode, cause) in [
            (r#"{"type":"gdch_service_account","private_key":"hush"}"#, 0o600, "type that is known"),
            (r#"{"type":"authorized_user","client_id":7,"client_secret":"hush"}"#, 0o600, "lacks a field"),
            (user, 0o644, "chmod 600"),
        ] {
            std::fs::write(&file, content).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&file).err().unwrap();
            let text = error.to_string();
            assert!(text.contains(cause) && text.contains("key.json") && !text.contains("hush"), "{text}");
            assert_eq!(error.kind(), ErrorKind::Unusable);
        }
        let none = read(&folder.path().join("none")).err().unwrap();
        assert!(none.to_string().contains("there is no such file"), "{none}");
    }

    #[test]
    fn the_token_of_another_provider_is_a_text_or_a_field() {
        let source = |field: Option<&str>| SubjectSource {
            file: None,
            url: None,
            headers: BTreeMap::new(),
            format: SubjectFormat { subject_token_field_name: field.map(str::to_owned) },
        };
        assert_eq!(source(None).read(" abc\n").unwrap(), "abc");
        assert_eq!(source(Some("t")).read(r#"{"t":"abc"}"#).unwrap(), "abc");
        assert_eq!(source(Some("t")).read("abc").unwrap_err().kind(), ErrorKind::NotApplied);
    }
}
