use std::fs;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::receiver::{Act, Receiver};
use crate::world::{ChangingResolver, local, publish, sink_with, word};

/// A folder with the certificate of an authority, and the server's configuration for `hooks.example`.
fn authority() -> (TempDir, ServerConfig) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["hooks.example".into()]).unwrap().signed_by(&key, &issuer).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(leaf.pem().as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (folder, config.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

#[tokio::test]
async fn a_name_keeps_its_certificate_and_its_host_on_the_address_that_was_checked() {
    let (folder, server) = authority();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let receiver = Receiver::start_tls(listener, TlsAcceptor::from(Arc::new(server)), |_, _| Act::Answer(200, vec![]));
    let mut endpoint = local(format!("https://hooks.example:{}/x", receiver.port));
    endpoint.allow_http = false;
    endpoint.authorities = Some(folder.path().join("ca.pem"));
    let resolver = ChangingResolver::new(&[&["127.0.0.1"]]);
    let sink = sink_with([("e", endpoint.clone())], Some(Arc::clone(&resolver) as _));
    let published = publish(&sink, 1).await;
    assert_eq!(word(&published).0, "yes", "{published:?}");
    assert_eq!(receiver.got()[0].header("host"), format!("hooks.example:{}", receiver.port));
    // The authorities of the system have not signed it, and neither has another one.
    let (other, _) = authority();
    for authorities in [None, Some(other.path().join("ca.pem"))] {
        endpoint.authorities = authorities;
        let sink = sink_with([("e", endpoint.clone())], Some(Arc::clone(&resolver) as _));
        let (word, reason) = word(&publish(&sink, 2).await);
        assert!(word == "not-published" && reason.contains("certificate"), "{word}: {reason}");
    }
    assert_eq!(receiver.got().len(), 1);
}
