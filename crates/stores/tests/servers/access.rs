//! Every way in: sockets, databases, users, passwords and TLS.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::Store;
use hapax_testkit::servers::{Kind, Options, RedisServer, Reply};
use libtest_mimic::Trial;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::plight::refused;
use crate::world::{FIRST, Operation, ask, failure, open, start, store, test};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = Kind::Redis.name();
    vec![
        test("a_socket_leads_there", redis, socket),
        test("a_database_has_its_own_records", redis, database),
        test("a_user_gets_in_by_a_password_in_a_file", redis, password_file),
        test("tls_with_an_authority_of_our_own", redis, tls),
        test("tls_with_a_certificate_of_our_own", redis, mutual_tls),
        test("tls_and_none_do_not_meet", redis, mixed),
    ]
}

async fn socket() {
    let server = start(Kind::Redis, &[]).await;
    let path = server.socket_path().display().to_string();
    Operation::new("one").cycle(&*store(&format!("unix://{path}"))).await;
    Operation::new("one").replays(&*store(&server.url()), "done").await;
    Operation::new("one").cycle(&*store(&format!("unix://{path}?db=3"))).await;
}

async fn database() {
    let server = start(Kind::Redis, &[]).await;
    for number in [0, 7] {
        Operation::new("one").cycle(&*store(&format!("redis://{}/{number}", server.address()))).await;
    }
    let keyspace = ask(&server, &["INFO", "keyspace"]).await.text();
    assert!(keyspace.contains("db0:keys=2,") && keyspace.contains("db7:keys=2,"), "{keyspace}");
}

async fn password_file() {
    let options = Options::new(Kind::Redis).with_password("the operator's");
    let server = RedisServer::start(options).await.unwrap();
    ask(&server, &["ACL", "SETUSER", "payments", "on", ">a pass/word?", "~hx:*", "+@all"]).await;
    let file = server.data_folder().join("password");
    let url = format!("redis://payments@{}?password-file={}", server.address(), file.display());
    let missing = failure(open(&url).map(drop));
    assert_eq!(missing.kind(), Unusable, "{missing:?}");
    fs::write(&file, "a pass/word?\n").unwrap();
    let store = store(&url);
    Operation::new("one").cycle(&*store).await;
    assert!(!format!("{:?}", url.parse::<hapax_stores::RedisUrl>().unwrap()).contains("pass/word"));
    fs::write(&file, "another").unwrap();
    refused(Operation::new("two").begin(&*crate::world::store(&url), FIRST).await, Unusable, "user and password");
}

/// An authority, and certificates that it signed.
struct Pki(TempDir);

impl Pki {
    fn new(name: &str) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.distinguished_name.push(DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let pki = Self(tempfile::tempdir().unwrap());
        pki.write("ca", &authority.self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(authority, authority_key);
        for (name, subject) in [("server", "127.0.0.1"), ("client", "payments.example")] {
            let key = KeyPair::generate().unwrap();
            let leaf = CertificateParams::new(vec![subject.into()]).unwrap().signed_by(&key, &issuer).unwrap();
            pki.write(&format!("{name}-cert"), &leaf.pem());
            pki.write(&format!("{name}-key"), &key.serialize_pem());
        }
        pki
    }

    fn write(&self, name: &str, pem: &str) {
        fs::write(self.0.path().join(name), pem).unwrap();
    }

    fn path(&self, name: &str) -> String {
        Path::new(self.0.path()).join(name).display().to_string()
    }

    /// A server by TLS, and where.
    async fn server(&self, auth_clients: &str) -> (RedisServer, SocketAddr) {
        let secure = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (port, cert, key, ca) =
            (secure.port().to_string(), self.path("server-cert"), self.path("server-key"), self.path("ca"));
        let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let clients = ["--tls-port", &port, "--tls-auth-clients", auth_clients];
        (start(Kind::Redis, &[&files[..], &clients].concat()).await, secure)
    }
}

async fn tls() {
    let pki = Pki::new("ours");
    let (server, secure) = pki.server("no").await;
    let (operation, ca, other) = (Operation::new("one"), pki.path("ca"), Pki::new("another"));
    for untrusted in [format!("rediss://{secure}"), format!("rediss://{secure}?ca={}", other.path("ca"))] {
        let store = store(&untrusted);
        refused(operation.begin(&*store, FIRST).await, Unusable, "the server's certificate is not trusted");
        refused(store.read(&operation.0.record_key()).await, Unusable, "UnknownIssuer");
    }
    let port = secure.port();
    let named = store(&format!("rediss://localhost:{port}?ca={ca}"));
    refused(operation.begin(&*named, FIRST).await, Unusable, "the server's certificate is not trusted");
    assert_eq!(ask(&server, &["DBSIZE"]).await, Reply::Integer(0));
    operation.cycle(&*store(&format!("rediss://{secure}?ca={ca}"))).await;
    operation.replays(&*store(&server.url()), "done").await;
    let none = failure(open(&format!("rediss://{secure}?ca={}", pki.path("server-key"))).map(drop));
    assert_eq!(none.kind(), Unusable, "{none:?}");
}

async fn mutual_tls() {
    let pki = Pki::new("ours");
    let (server, secure) = pki.server("yes").await;
    let (operation, other) = (Operation::new("one"), Pki::new("another"));
    let anonymous = format!("rediss://{secure}?ca={}", pki.path("ca"));
    let with = |pki: &Pki| format!("{anonymous}&cert={}&key={}", pki.path("client-cert"), pki.path("client-key"));
    for stranger in [anonymous.clone(), with(&other)] {
        refused(operation.begin(&*store(&stranger), FIRST).await, Unusable, "certificate of ours");
    }
    assert_eq!(ask(&server, &["DBSIZE"]).await, Reply::Integer(0));
    operation.cycle(&*store(&with(&pki))).await;
}

async fn mixed() {
    let pki = Pki::new("ours");
    let (server, secure) = pki.server("no").await;
    let operation = Operation::new("one");
    let to_plain = store(&format!("rediss://{}?ca={}", server.address(), pki.path("ca")));
    refused(operation.begin(&*to_plain, FIRST).await, NotApplied, "write redis://");
    let to_secure = store(&format!("redis://{secure}"));
    refused(operation.begin(&*to_secure, FIRST).await, NotApplied, "write rediss://");
    assert_eq!(ask(&server, &["DBSIZE"]).await, Reply::Integer(0));
}
