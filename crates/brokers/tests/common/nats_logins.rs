//! Tokens, NKeys and credentials of NATS, each from a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, stream};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hapax_brokers::{NatsSource, NatsUrl};
use hapax_core::ErrorKind;
use hapax_core::broker::Source as _;
use hapax_testkit::servers::NatsServer;
use nkeys::KeyPair;
use tempfile::TempDir;

use crate::common::runtime;

/// Writes a file that only its owner can read, and returns its path.
fn secret(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

async fn server_with(folder: &TempDir, config: &str) -> NatsServer {
    let config = secret(folder, "server.conf", config);
    NatsServer::start(&["-c", &config]).await.unwrap()
}

async fn create_stream(server: &NatsServer, options: ConnectOptions) {
    let context = jetstream::new(options.connect(server.address().to_string()).await.unwrap());
    context.create_stream(stream::Config { name: "s".into(), ..Default::default() }).await.unwrap();
}

/// Connects with these parameters. An error shows nothing of `hidden`.
async fn connect(server: &NatsServer, parameters: &str, hidden: &str) -> Result<(), ErrorKind> {
    let url: NatsUrl = format!("{}/s?durable=d&{parameters}", server.url()).parse().unwrap();
    match NatsSource::connect(&url, runtime()).await {
        Ok(mut source) => {
            source.close().await.unwrap();
            Ok(())
        }
        Err(error) => {
            assert!(!format!("{error:?} {url:?}").contains(hidden), "{error:?}");
            Err(error.kind())
        }
    }
}

/// A token of the operator mode of NATS.
fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let body =
        format!(r#"{{"jti":"{sub}","iat":1700000000,"iss":"{iss}","name":"test","sub":"{sub}","nats":{claims}}}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(body));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

fn creds(jwt: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// Starts a server in operator mode, and returns the credentials of a user.
async fn operator_mode(folder: &TempDir) -> (NatsServer, String) {
    let limits = r#""subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1"#;
    let storage = r#""mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1"#;
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let (system, user) = (KeyPair::new_account(), KeyPair::new_user());
    let account_claims = |limits: &str| format!(r#"{{"type":"account","version":2,"limits":{{{limits}}}}}"#);
    let user_claims = r#"{"type":"user","version":2,"subs":-1,"data":-1,"payload":-1}"#;
    let config = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}\n",
        jwt(&operator, &operator, r#"{"type":"operator","version":2}"#),
        system.public_key(),
        account.public_key(),
        jwt(&operator, &account, &account_claims(&format!("{limits},{storage}"))),
        system.public_key(),
        jwt(&operator, &system, &account_claims(limits)),
    );
    let creds = creds(&jwt(&account, &user, user_claims), &user.seed().unwrap());
    (server_with(folder, &config).await, creds)
}

pub(crate) async fn a_token_a_seed_and_credentials_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let user = KeyPair::new_user();
    let seed = user.seed().unwrap();

    let server = server_with(&folder, "authorization { token: open-sesame }\n").await;
    create_stream(&server, ConnectOptions::new().token("open-sesame".into())).await;
    let (right, wrong) = (secret(&folder, "token", "open-sesame\n"), secret(&folder, "wrong", "hush-hush\n"));
    assert_eq!(connect(&server, &format!("token-file={right}"), "sesame").await, Ok(()));
    assert_eq!(connect(&server, &format!("token-file={wrong}"), "hush-hush").await, Err(ErrorKind::Unusable));

    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}\n", user.public_key());
    let server = server_with(&folder, &users).await;
    create_stream(&server, ConnectOptions::new().nkey(seed.clone())).await;
    let other = KeyPair::new_user().seed().unwrap();
    let (right, wrong) = (secret(&folder, "seed", &format!("{seed}\n")), secret(&folder, "other", &other));
    assert_eq!(connect(&server, &format!("nkey-file={right}"), &seed).await, Ok(()));
    assert_eq!(connect(&server, &format!("nkey-file={wrong}"), &other).await, Err(ErrorKind::Unusable));

    let (server, text) = operator_mode(&folder).await;
    create_stream(&server, ConnectOptions::with_credentials(&text).unwrap()).await;
    let path = secret(&folder, "worker.creds", &text);
    assert_eq!(connect(&server, &format!("creds-file={path}"), "eyJ").await, Ok(()));
    assert_eq!(connect(&server, "tls=no", "eyJ").await, Err(ErrorKind::Unusable), "without a login");
}

pub(crate) async fn two_logins_and_files_without_a_login_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = NatsServer::shared().await.unwrap();
    let path = secret(&folder, "file", "hush-hush");
    for parameter in ["creds-file", "nkey-file"] {
        let refused = connect(&server, &format!("{parameter}={path}"), "hush-hush").await;
        assert_eq!(refused, Err(ErrorKind::Unusable), "{parameter}");
        let missing = connect(&server, &format!("{parameter}={path}-missing"), "hush-hush").await;
        assert_eq!(missing, Err(ErrorKind::Unusable), "{parameter}");
        fs::set_permissions(Path::new(&path), fs::Permissions::from_mode(0o644)).unwrap();
        let open = connect(&server, &format!("{parameter}={path}"), "hush-hush").await;
        assert_eq!(open, Err(ErrorKind::Unusable), "{parameter}");
        let both = format!("nats://me:hush-hush@{}/s?durable=d&{parameter}={path}", server.address());
        let error = both.parse::<NatsUrl>().unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && !error.to_string().contains("hush-hush"), "{error}");
    }
}

pub(crate) async fn a_user_without_the_rights_of_a_worker_learns_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let inbox = r#"subscribe: ["_INBOX.>"]"#;
    let consumer = r#""$JS.API.CONSUMER.*.s.d", "$JS.API.CONSUMER.MSG.NEXT.s.d", "$JS.ACK.s.d.>""#;
    let user = |name: &str, rights: &str| format!("{{ user: {name}, password: open, permissions: {{ {rights} }} }}");
    let users = [
        "{ user: admin, password: open }".to_owned(),
        user("none", inbox).replace("permissions: {", "permissions: { publish: [\"other\"],"),
        user("half", &format!(r#"publish: ["$JS.API.STREAM.INFO.s"], {inbox}"#)),
        user("worker", &format!(r#"publish: ["$JS.API.STREAM.INFO.s", {consumer}], {inbox}"#)),
    ];
    let server = server_with(&folder, &format!("authorization {{ users: [ {} ] }}\n", users.join(", "))).await;
    create_stream(&server, ConnectOptions::new().user_and_password("admin".into(), "open".into())).await;
    let connect = async |user: &str| {
        let url: NatsUrl = format!("nats://{user}:open@{}/s?durable=d", server.address()).parse().unwrap();
        NatsSource::connect(&url, runtime()).await
    };
    for (user, missing) in [("none", "$JS.API.STREAM.INFO.s"), ("half", "$JS.API.CONSUMER.INFO.s.d")] {
        let begun = Instant::now();
        let error = connect(user).await.expect_err("a denial");
        assert!(error.kind() == ErrorKind::Unusable && error.to_string().contains(missing), "{user}: {error:?}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
    connect("worker").await.unwrap().close().await.unwrap();
}
