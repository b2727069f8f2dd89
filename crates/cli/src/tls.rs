//! TLS for clients, whose certificate can be loaded again, and for the API.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use hapax_net::tls::{self, ServerTrust, TlsFiles};
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::TlsAcceptor;

pub(crate) use hapax_net::tls::unused_config;

pub(crate) const H2: &[u8] = b"h2";
const HTTP_11: &[u8] = b"http/1.1";

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
        let mut config = ServerConfig::builder_with_provider(tls::provider())
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
    let chain = tls::certificates(certificate).context("--tls-cert")?;
    let private = tls::private_key(key).context("--tls-key")?;
    let (key, certificate) = (key.display(), certificate.display());
    CertifiedKey::from_der(chain, private, &tls::provider()).map_err(|error| {
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
    let files = TlsFiles { ca: authorities.map(Path::to_owned), identity: None };
    let config = tls::client_config(ServerTrust::Named, &files);
    match (flag, authorities) {
        (Some(flag), Some(_)) => config.with_context(|| flag.to_owned()),
        (Some(flag), None) => config.with_context(|| format!("without {flag}")),
        (None, _) => Ok(config?),
    }
}
