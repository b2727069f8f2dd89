//! The ways to connect: sockets, roles, passwords and TLS.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use hapax_core::ErrorKind::Unusable;
use hapax_core::store::{Inspect, Severity};
use hapax_testkit::servers::PostgresServer;
use libtest_mimic::Trial;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::ledger::{ledger, terms};
use super::ledger_prepared::seen_by_handlers;
use super::{POSTGRES, open, schema, start, store};
use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, expect_error, test, until, write_secret};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("a_unix_socket_can_be_used", POSTGRES, socket),
        test("a_role_needs_few_permissions", POSTGRES, least_privilege),
        test("a_password_file_can_be_used", POSTGRES, password_file),
        test("tls_checks_the_server_as_far_as_the_url_says", POSTGRES, tls),
        test("a_wrong_host_port_or_database_is_named", POSTGRES, wrong_place),
    ]
}

async fn socket() {
    let server = PostgresServer::shared().await.unwrap();
    let schema = schema().await;
    let (folder, port, name) = (server.data_folder().display(), server.address().port(), schema.name());
    let by_socket = format!("postgres:///postgres?host={folder}&user={name}&port={port}&schema={name}");
    Operation::new("one").cycle(&*store(&by_socket)).await;
    Operation::new("one").assert_replays(&*store(&schema.url()), "done").await;
}

/// Exactly the permissions that the error for a missing one names.
async fn least_privilege() {
    let schema = schema().await;
    store(&schema.url()).check().await.unwrap();
    let (server, name) = (PostgresServer::shared().await.unwrap(), schema.name());
    // The owner of the database owns the schema and its tables.
    schema.admin().batch_execute(&format!("reassign owned by {name} to postgres")).await.unwrap();
    let grants = [
        format!("create role {name}_few login"),
        format!("grant usage on schema {name} to {name}_few"),
        format!("grant select on hapax_migration to {name}_few"),
        format!("grant select, update on hapax_store to {name}_few"),
        format!("grant select, insert, update, delete on hapax_record to {name}_few"),
    ];
    let url = format!("postgres://{name}_few@{}/postgres?schema={name}", server.address());
    for grant in &grants {
        schema.admin().batch_execute(grant).await.unwrap();
        let is_last = grant == grants.last().unwrap();
        let (few, operation) = (store(&url), Operation::new("one"));
        if is_last {
            assert_eq!(few.check().await.unwrap(), []);
            operation.cycle(&*few).await;
            few.sweep(10).await.unwrap();
            few.count_unknown().await.unwrap();
        } else {
            let text = if grant.starts_with("create") { "hapax migrate" } else { "permission" };
            assert_refused(operation.begin(&*few, FIRST).await, Unusable, text);
        }
    }
}

async fn password_file() {
    let server = start().await;
    let admin = server.client().await.unwrap();
    admin
        .batch_execute("create role payments login password 'a pass/word?'; create schema authorization payments")
        .await
        .unwrap();
    // The socket and other roles stay open, so that the test can go on.
    let rules = server.data_folder().join("data/pg_hba.conf");
    let others = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, format!("host all payments 127.0.0.1/32 scram-sha-256\n{others}")).unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let url =
        format!("postgres://payments@{}/postgres?schema=payments&password-file={}", server.address(), file.display());
    let missing = expect_error(open(&url).map(drop));
    assert_eq!(missing.kind(), Unusable, "{missing:?}");
    write_secret(&file, "a pass/word?\n");
    let store_with_file = store(&url);
    Operation::new("one").cycle(&*store_with_file).await;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(expect_error(open(&url).map(drop)).to_string().contains("chmod 600"));
    write_secret(&file, "another");
    until("the server demands the password", || async {
        let error = expect_error(Operation::new("two").begin(&*store(&url), FIRST).await);
        error.kind() == Unusable && error.to_string().contains("user or password")
    })
    .await;
    let without = store(&format!("postgres://payments@{}/postgres?schema=payments", server.address()));
    assert_refused(Operation::new("two").begin(&*without, FIRST).await, Unusable, "asks for a password");
}

async fn wrong_place() {
    let server = PostgresServer::shared().await.unwrap();
    let operation = Operation::new("one");
    let nowhere = store(&format!("postgres://postgres@{}/no_such_database", server.address()));
    assert_refused(operation.begin(&*nowhere, FIRST).await, Unusable, "no database with the name");
    let encrypted = store(&format!("postgres://postgres@{}/postgres?sslmode=require", server.address()));
    assert_refused(operation.begin(&*encrypted, FIRST).await, Unusable, "does not speak TLS");
}

/// A certificate authority, and a certificate for 127.0.0.1.
struct CertificateAuthority(TempDir);

impl CertificateAuthority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let (authority, key) = (Self(tempfile::tempdir().unwrap()), KeyPair::generate().unwrap());
        write_secret(&authority.path("ca"), &params.self_signed(&key).unwrap().pem());
        let (issuer, leaf_key) = (Issuer::new(params, key), KeyPair::generate().unwrap());
        let leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&leaf_key, &issuer).unwrap();
        write_secret(&authority.path("server.crt"), &leaf.pem());
        write_secret(&authority.path("server.key"), &leaf_key.serialize_pem());
        authority
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }
}

/// Turns on TLS. The files belong to the user that the server runs as.
async fn start_tls(server: &PostgresServer, authority: &CertificateAuthority) {
    let data = server.data_folder().join("data");
    let owner = fs::metadata(&data).unwrap();
    for name in ["server.crt", "server.key"] {
        let path: &Path = &data.join(name);
        fs::copy(authority.path(name), path).unwrap();
        chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let admin = server.client().await.unwrap();
    admin.batch_execute("alter system set ssl = on").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    until("the server speaks TLS", || async {
        admin.query_one("show ssl", &[]).await.unwrap().get::<_, String>(0) == "on"
    })
    .await;
}

async fn tls() {
    let (server, ours, other) = (start().await, CertificateAuthority::new("ours"), CertificateAuthority::new("other"));
    start_tls(&server, &ours).await;
    let port = server.address().port();
    let url = |host: &str, parameters: String| format!("postgres://postgres@{host}:{port}/postgres?{parameters}");
    let by =
        |mode: &str, authority: &CertificateAuthority| format!("sslmode={mode}&ca={}", authority.path("ca").display());
    let operation = Operation::new("one");
    for untrusted in [
        url("127.0.0.1", "sslmode=verify-full".into()),
        url("127.0.0.1", by("verify-full", &other)),
        url("127.0.0.1", by("verify-ca", &other)),
        // The certificate names 127.0.0.1 only.
        url("localhost", by("verify-full", &ours)),
    ] {
        assert_refused(operation.begin(&*store(&untrusted), FIRST).await, Unusable, "certificate is not trusted");
    }
    operation.cycle(&*store(&url("127.0.0.1", by("verify-full", &ours)))).await;
    operation.assert_replays(&*store(&url("localhost", by("verify-ca", &ours))), "done").await;
    let blind = store(&url("localhost", "sslmode=require".into()));
    operation.assert_replays(&*blind, "done").await;
    let ledger = ledger(&url("127.0.0.1", by("verify-full", &ours)), terms());
    assert_eq!(seen_by_handlers(&ledger, "one").await, "6", "also over TLS it is known that no pooler is in between");
    let findings = blind.check().await.unwrap();
    assert!(findings.iter().any(|it| it.severity == Severity::Warn && it.message.contains("sslmode")), "{findings:?}");
    let admin = server.client().await.unwrap();
    let encrypted = admin.query_one("select count(*) from pg_stat_ssl where ssl", &[]).await.unwrap();
    assert!(encrypted.get::<_, i64>(0) > 0);
}
