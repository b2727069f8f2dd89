//! TLS to the server.

use std::sync::Arc;

use hapax_core::Result;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::url::{invalid, read, read_secret, unusable};

/// How far the server is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// No TLS.
    Disable,
    /// Encrypts, and trusts every server.
    Require,
    /// Trusts a server whose certificate an authority signed, for any name.
    VerifyCa,
    /// Trusts a server whose certificate an authority signed for this host.
    VerifyFull,
}

impl TlsMode {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text {
            "disable" => Ok(Self::Disable),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(invalid(format!("sslmode must be disable, require, verify-ca or verify-full, not `{text}`"))),
        }
    }
}

/// The paths of the certificates in a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) authority: Option<String>,
    /// A client certificate and its key.
    pub(super) identity: Option<(String, String)>,
}

impl TlsFiles {
    /// Whether the URL names a file.
    pub(super) fn has_any(&self) -> bool {
        *self != Self::default()
    }
}

/// The settings of the TLS library. Reads the files.
pub(super) fn client_config(mode: TlsMode, files: &TlsFiles) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let failed = |source: rustls::Error| unusable("the TLS settings cannot be used").caused_by(source);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    // Without `require` the authorities are needed, so that an empty store of the system is an error at start.
    let chain = match mode {
        TlsMode::Require | TlsMode::Disable => None,
        TlsMode::VerifyCa | TlsMode::VerifyFull => Some(authorities(files.authority.as_deref())?),
    };
    let verifier = ServerTrust { chain: chain.map(|roots| verifier(roots, &provider)).transpose()?, mode, provider };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, key)) => {
            let key_pem = read_secret(key)?;
            let key = PrivateKeyDer::from_pem_slice(&key_pem)
                .map_err(|source| unusable(format!("there is no private key in {key}")).caused_by(source))?;
            builder.with_client_auth_cert(certificates(cert)?, key).map_err(failed)
        }
    }
}

fn verifier(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    built.map_err(|source| unusable("there is no authority to check the server's certificate").caused_by(source))
}

fn authorities(path: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match path {
        Some(path) => {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added
                    .map_err(|source| unusable(format!("a certificate in {path} cannot be used")).caused_by(source))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

/// Reads the certificates in a file. A file without any is an error.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let message = || format!("there is no certificate in {path}, which is named in the server's URL");
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(message())),
        Err(source) => Err(unusable(message()).caused_by(source)),
    }
}

/// Decides whether the server's certificate is trusted.
#[derive(Debug)]
struct ServerTrust {
    /// Checks the chain of signatures and the name. None: every server is trusted.
    chain: Option<Arc<WebPkiServerVerifier>>,
    mode: TlsMode,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerTrust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked after the chain.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.mode == TlsMode::VerifyCa => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
