//! The ways to connect: sockets, databases, users, passwords and TLS.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::Store;
use hapax_testkit::servers::{
    RedisCluster, RedisClusterOptions, RedisKind, RedisServer, RedisServerOptions, RedisTls, RespValue,
};
use libtest_mimic::Trial;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, ask, config, expect_error, open, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    vec![
        test("a_unix_socket_can_be_used", redis, socket),
        test("a_database_has_its_own_records", redis, database),
        test("a_password_file_can_be_used", redis, password_file),
        test("tls_with_a_private_authority", redis, tls),
        test("tls_with_a_client_certificate", redis, mutual_tls),
        test("tls_and_plain_ports_name_the_right_scheme", redis, wrong_scheme),
        test("tls_with_the_names_that_a_cluster_announces", redis, announced_names),
    ]
}

async fn socket() {
    let server = start(RedisKind::Redis, &[]).await;
    let path = server.socket_path().display().to_string();
    Operation::new("one").cycle(&*store(&format!("unix://{path}"))).await;
    Operation::new("one").assert_replays(&*store(&server.url()), "done").await;
    Operation::new("one").cycle(&*store(&format!("unix://{path}?db=3"))).await;
}

async fn database() {
    let server = start(RedisKind::Redis, &[]).await;
    for number in [0, 7] {
        Operation::new("one").cycle(&*store(&format!("redis://{}/{number}", server.address()))).await;
    }
    let keyspace = ask(&server, &["INFO", "keyspace"]).await.text();
    assert!(keyspace.contains("db0:keys=2,") && keyspace.contains("db7:keys=2,"), "{keyspace}");
}

async fn password_file() {
    let options = RedisServerOptions::new(RedisKind::Redis).with_password("the operator's");
    let server = RedisServer::start(options).await.unwrap();
    ask(&server, &["ACL", "SETUSER", "payments", "on", ">a pass/word?", "~hx:*", "+@all"]).await;
    let file = server.data_folder().join("password");
    let url = format!("redis://payments@{}?password-file={}", server.address(), file.display());
    let missing = expect_error(open(&url).map(drop));
    assert_eq!(missing.kind(), Unusable, "{missing:?}");
    crate::support::write_secret(&file, "a pass/word?\n");
    let store = store(&url);
    Operation::new("one").cycle(&*store).await;
    assert!(!format!("{:?}", url.parse::<hapax_stores::RedisUrl>().unwrap()).contains("pass/word"));
    // A new store reads the file again. The old one keeps its open connection.
    fs::write(&file, "another").unwrap();
    assert_refused(
        Operation::new("two").begin(&*crate::support::store(&url), FIRST).await,
        Unusable,
        "user or password",
    );
}

/// A certificate authority with a server and a client certificate.
struct CertificateAuthority(TempDir);

impl CertificateAuthority {
    fn new(name: &str) -> Self {
        Self::of(name, "127.0.0.1")
    }

    /// The certificate of the server names this host.
    fn of(name: &str, host: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority = Self(tempfile::tempdir().unwrap());
        authority.write("ca", &params.self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(params, authority_key);
        for (name, subject) in [("server", host), ("client", "payments.example")] {
            let key = KeyPair::generate().unwrap();
            let leaf = CertificateParams::new(vec![subject.into()]).unwrap().signed_by(&key, &issuer).unwrap();
            authority.write(&format!("{name}-cert"), &leaf.pem());
            authority.write(&format!("{name}-key"), &key.serialize_pem());
        }
        authority
    }

    fn write(&self, name: &str, pem: &str) {
        crate::support::write_secret(&self.0.path().join(name), pem);
    }

    fn path(&self, name: &str) -> String {
        Path::new(self.0.path()).join(name).display().to_string()
    }

    fn tls(&self) -> RedisTls {
        let read = |name| fs::read_to_string(self.path(name)).unwrap();
        RedisTls { certificate: read("server-cert"), key: read("server-key"), authority: read("ca") }
    }

    /// Starts a server with TLS. Returns it and the address of its TLS port.
    async fn server(&self, auth_clients: &str) -> (RedisServer, SocketAddr) {
        let secure = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (port, cert, key, ca) =
            (secure.port().to_string(), self.path("server-cert"), self.path("server-key"), self.path("ca"));
        let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let clients = ["--tls-port", &port, "--tls-auth-clients", auth_clients];
        (start(RedisKind::Redis, &[&files[..], &clients].concat()).await, secure)
    }
}

async fn tls() {
    let authority = CertificateAuthority::new("ours");
    let (server, secure) = authority.server("no").await;
    let (operation, ca, other) = (Operation::new("one"), authority.path("ca"), CertificateAuthority::new("another"));
    for untrusted in [format!("rediss://{secure}"), format!("rediss://{secure}?ca={}", other.path("ca"))] {
        let store = store(&untrusted);
        assert_refused(operation.begin(&*store, FIRST).await, Unusable, "the server's certificate is not trusted");
        assert_refused(store.read(&operation.0.record_key()).await, Unusable, "UnknownIssuer");
    }
    let port = secure.port();
    // The certificate names 127.0.0.1 only.
    let named = store(&format!("rediss://localhost:{port}?ca={ca}"));
    assert_refused(operation.begin(&*named, FIRST).await, Unusable, "the server's certificate is not trusted");
    assert_eq!(ask(&server, &["DBSIZE"]).await, RespValue::Integer(0));
    operation.cycle(&*store(&format!("rediss://{secure}?ca={ca}"))).await;
    operation.assert_replays(&*store(&server.url()), "done").await;
    // A file that contains a key but no certificate.
    let none = expect_error(open(&format!("rediss://{secure}?ca={}", authority.path("server-key"))).map(drop));
    assert_eq!(none.kind(), Unusable, "{none:?}");
}

async fn mutual_tls() {
    let authority = CertificateAuthority::new("ours");
    let (server, secure) = authority.server("yes").await;
    let (operation, other) = (Operation::new("one"), CertificateAuthority::new("another"));
    let anonymous = format!("rediss://{secure}?ca={}", authority.path("ca"));
    let with = |authority: &CertificateAuthority| {
        format!("{anonymous}&cert={}&key={}", authority.path("client-cert"), authority.path("client-key"))
    };
    for stranger in [anonymous.clone(), with(&other)] {
        assert_refused(operation.begin(&*store(&stranger), FIRST).await, Unusable, "demands a client certificate");
    }
    assert_eq!(ask(&server, &["DBSIZE"]).await, RespValue::Integer(0));
    operation.cycle(&*store(&with(&authority))).await;
}

async fn wrong_scheme() {
    let authority = CertificateAuthority::new("ours");
    let (server, secure) = authority.server("no").await;
    let operation = Operation::new("one");
    let to_plain = store(&format!("rediss://{}?ca={}", server.address(), authority.path("ca")));
    assert_refused(operation.begin(&*to_plain, FIRST).await, NotApplied, "write redis://");
    let to_secure = store(&format!("redis://{secure}"));
    assert_refused(operation.begin(&*to_secure, FIRST).await, NotApplied, "write rediss://");
    assert_eq!(ask(&server, &["DBSIZE"]).await, RespValue::Integer(0));
}

/// The certificates of the nodes name what they announce, and not their addresses.
async fn announced_names() {
    let names = ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"];
    let options = RedisClusterOptions::new(RedisKind::Redis).with_args(&names);
    let authority = CertificateAuthority::of("ours", "localhost");
    let cluster = RedisCluster::start(options.with_tls(authority.tls())).await.unwrap();
    let url = cluster.url().replace("127.0.0.1", "localhost");
    let by_name = store(&url);
    // A few for each master.
    for n in 0..10 {
        let operation = Operation::new(&n.to_string());
        until("the nodes know the names of each other", || async { operation.begin(&*by_name, FIRST).await.is_ok() })
            .await;
    }
    for node in cluster.nodes() {
        config(node, "cluster-preferred-endpoint-type", "ip").await;
    }
    let by_address = Operation::new("one").begin(&*store(&url), FIRST).await;
    assert_refused(by_address, Unusable, "the server's certificate is not trusted");
}
