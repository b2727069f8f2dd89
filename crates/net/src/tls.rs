//! TLS for clients, and certificates in PEM: rustls with the provider `ring`.

mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax_core::{Error, ErrorKind, Result};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use self::trust::ChainVerifier;
use crate::files;

/// The files of a client, all PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that sign servers' certificates, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// A client certificate with its chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Whether a file is named.
    pub fn has_any(&self) -> bool {
        *self != Self::default()
    }
}

/// Which servers a client trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerTrust {
    /// One whose certificate an authority signed for this host.
    Named,
    /// One whose certificate an authority signed, for any host.
    AnyName,
    /// Every server. The connection is encrypted, and anybody may be at its other end.
    Everybody,
}

/// The algorithms of TLS.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The settings of a client. Reads the files.
///
/// # Errors
/// `Unusable` if a file cannot be used, the key is refused as by [`files::read_secret`], or the system has no
/// authorities.
pub fn client_config(trust: ServerTrust, files: &TlsFiles) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(unusable_settings)?;
    let builder = match trust {
        ServerTrust::Named => builder.with_root_certificates(authorities(files.ca.as_deref())?),
        ServerTrust::AnyName => {
            let verifier = ChainVerifier::of(authorities(files.ca.as_deref())?, provider())?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        ServerTrust::Everybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(ChainVerifier::none(provider())))
        }
    };
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let config = builder.with_client_auth_cert(certificates(certificate)?, private_key(key)?);
            config.map_err(unusable_settings)
        }
    }
}

/// The settings for a server without TLS, where a library demands some that it never uses. They trust nobody.
///
/// # Errors
/// Those of the TLS library.
pub fn unused_config() -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(unusable_settings)?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let none = || unusable("the system has no trusted authorities; name a file with some, or set SSL_CERT_FILE");
        return if roots.is_empty() { Err(none()) } else { Ok(roots) };
    };
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|source| {
            let message = format!("{} contains a certificate that is not an authority", file.display());
            unusable(message).caused_by(source)
        })?;
    }
    Ok(roots)
}

/// Reads the certificates in a file.
///
/// # Errors
/// `Unusable` if the file cannot be read, or has none.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    certificates_in(&read(file, files::read)?, file)
}

/// Reads a file with certificates as it is, for a driver that has a TLS library of its own.
///
/// # Errors
/// As [`certificates`]. Drivers take a file without certificates, and then trust no server.
pub fn certificates_pem(file: &Path) -> Result<Vec<u8>> {
    let pem = read(file, files::read)?;
    certificates_in(&pem, file)?;
    Ok(pem)
}

fn certificates_in(pem: &[u8], file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let none = || unusable(format!("{} contains no certificate in PEM", file.display()));
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(none()),
        Err(source) => Err(none().caused_by(source)),
    }
}

/// Reads a private key.
///
/// # Errors
/// As [`files::read_secret`], and `Unusable` if the file has no key.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let pem = read(file, files::read_secret)?;
    let none = || unusable(format!("{} contains no private key in PEM", file.display()));
    PrivateKeyDer::from_pem_slice(&pem).map_err(|source| none().caused_by(source))
}

fn read(file: &Path, reader: fn(&Path) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    reader(file).map_err(|cause| unusable(format!("{}: {cause}", file.display())))
}

fn unusable_settings(source: rustls::Error) -> Error {
    unusable("the TLS settings cannot be used").caused_by(source)
}

fn unusable(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_without_certificates_or_keys_names_itself() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        let missing = folder.path().join("missing.pem");
        for (error, said) in [
            (certificates(&empty).unwrap_err(), "empty.pem contains no certificate in PEM"),
            (certificates_pem(&empty).unwrap_err(), "empty.pem contains no certificate in PEM"),
            (certificates(&missing).unwrap_err(), "missing.pem: there is no such file"),
            (private_key(&missing).unwrap_err(), "missing.pem: there is no such file"),
            (private_key(&empty).unwrap_err(), "empty.pem: the file can be read by everybody"),
        ] {
            assert!(error.to_string().contains(said), "{said}: {error}");
            assert_eq!(error.kind(), ErrorKind::Unusable);
        }
    }
}
