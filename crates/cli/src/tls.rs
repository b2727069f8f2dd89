//! TLS for clients and for the API: rustls with the provider `ring`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::files;

pub(crate) const H2: &[u8] = b"h2";
const HTTP_11: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificate for clients. New connections get the one that was loaded last.
#[derive(Debug)]
pub(crate) struct ServerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    loaded: RwLock<Arc<CertifiedKey>>,
}

impl ServerCertificate {
    /// Loads this certificate chain and private key, both PEM.
    pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Arc<Self>, anyhow::Error> {
        let loaded = RwLock::new(Arc::new(certified_key(certificate, key)?));
        Ok(Arc::new(Self { certificate: certificate.into(), key: key.into(), loaded }))
    }

    /// Loads the files again. On an error, the old certificate stays.
    pub(crate) fn reload(&self) {
        match certified_key(&self.certificate, &self.key) {
            Ok(loaded) => {
                let is_new = loaded.cert != self.loaded.read().cert;
                *self.loaded.write() = Arc::new(loaded);
                let file = self.certificate.display();
                tracing::info!(%file, is_new, "new connections get the server certificate in this file");
            }
            Err(error) => tracing::error!("{error:#}; the server certificate stays the old one"),
        }
    }

    /// Returns an acceptor of client connections with this certificate.
    pub(crate) fn acceptor(self: Arc<Self>) -> Result<TlsAcceptor, anyhow::Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self);
        config.alpn_protocols = vec![H2.to_vec(), HTTP_11.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.loaded.read()))
    }
}

fn certified_key(certificate: &Path, key: &Path) -> Result<CertifiedKey, anyhow::Error> {
    let chain = certificates(certificate).context("--tls-cert")?;
    let private = private_key(key).context("--tls-key")?;
    let (key, certificate) = (key.display(), certificate.display());
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| {
        let what = if matches!(error, rustls::Error::InconsistentKeys(_)) {
            format!("the key {key} does not belong to the certificate {certificate}")
        } else if matches!(error, rustls::Error::InvalidCertificate(_)) {
            format!("the certificate {certificate} cannot be used")
        } else {
            format!("the key {key} cannot be used; create an RSA, ECDSA (P-256 or P-384) or Ed25519 key")
        };
        anyhow::Error::from(error).context(what)
    })
}

/// Returns a configuration that trusts only the authorities in this file, or those of the system without a file. `flag`
/// is the flag that names the file, for errors.
pub(crate) fn client_config(authorities: Option<&Path>, flag: Option<&str>) -> Result<ClientConfig, anyhow::Error> {
    let mut roots = RootCertStore::empty();
    let found = match authorities {
        Some(file) => certificates(file).context(flag.unwrap_or_default().to_owned())?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (taken, ignored) = roots.add_parsable_certificates(found);
    match (authorities, ignored) {
        (Some(file), 1..) => bail!("{} contains a certificate that is not an authority", file.display()),
        (None, _) if taken == 0 => {
            let remedy = flag.unwrap_or("the variable SSL_CERT_FILE");
            bail!("the system has no trusted authorities; name a file with {remedy}")
        }
        _ => client_that_trusts(roots),
    }
}

/// Returns a configuration for an API without TLS. The connector requires one but never uses it.
pub(crate) fn unused_config() -> Result<ClientConfig, anyhow::Error> {
    client_that_trusts(RootCertStore::empty())
}

fn client_that_trusts(roots: RootCertStore) -> Result<ClientConfig, anyhow::Error> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Reads a private key. Refuses a file that others can read.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, anyhow::Error> {
    let pem = files::read_secret(file).with_context(|| file.display().to_string())?;
    PrivateKeyDer::from_pem_slice(&pem).with_context(|| format!("{} contains no private key in PEM", file.display()))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, anyhow::Error> {
    let pem = files::read(file).with_context(|| file.display().to_string())?;
    let read = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = read.with_context(|| format!("{} contains no certificate in PEM", file.display()))?;
    if found.is_empty() {
        bail!("{} contains no certificate in PEM", file.display());
    }
    Ok(found)
}
