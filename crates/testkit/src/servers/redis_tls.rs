//! Servers of Redis or Valkey that speak nothing but TLS.

use std::fs;
use std::io;
use std::path::PathBuf;

use tempfile::TempDir;

use super::process::new_folder;
use super::redis::RedisServerOptions;

/// What servers that speak nothing but TLS need, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// The certificate of every server, which names its address.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The authority that signed it.
    pub authority: String,
}

/// A folder with the files for TLS, if there is TLS.
#[derive(Debug)]
pub(super) struct RedisTlsFolder(Option<TempDir>);

impl RedisTlsFolder {
    pub(super) fn new(tls: Option<&RedisTls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self(None)) };
        let folder = new_folder()?;
        fs::write(folder.path().join("certificate"), &tls.certificate)?;
        fs::write(folder.path().join("key"), &tls.key)?;
        fs::write(folder.path().join("authority"), &tls.authority)?;
        Ok(Self(Some(folder)))
    }

    /// The options of a server with these files.
    pub(super) fn apply(&self, options: RedisServerOptions) -> RedisServerOptions {
        match &self.0 {
            Some(folder) => options.with_tls(folder.path()),
            None => options,
        }
    }

    /// The file with the authority.
    pub(super) fn authority(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|folder| folder.path().join("authority"))
    }
}
