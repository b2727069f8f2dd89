//! Certificates for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A folder with the certificates of an authority, a server and a client.
pub(crate) struct CertificateAuthority(TempDir);

impl CertificateAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority = Self(tempfile::tempdir().unwrap());
        authority.write("ca", &params.self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(params, authority_key);
        for (name, subject) in [("server", "127.0.0.1"), ("client", "worker.example")] {
            let key = KeyPair::generate().unwrap();
            let leaf = CertificateParams::new(vec![subject.into()]).unwrap().signed_by(&key, &issuer).unwrap();
            authority.write(&format!("{name}-cert"), &leaf.pem());
            authority.write(&format!("{name}-key"), &key.serialize_pem());
        }
        authority
    }

    pub(crate) fn write(&self, name: &str, pem: &str) {
        let path = self.path(name);
        fs::write(&path, pem).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}
