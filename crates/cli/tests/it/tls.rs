//! TLS with clients and with the API, and HTTP/2 with clients. The tests create their certificates.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use http::{HeaderName, Method, Request, Version};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::{Api, Gateway, until};
use crate::logs::access;
use crate::raw_http::RawConnection;

/// A certificate authority and a certificate for 127.0.0.1 that it signed.
pub(crate) struct Pki(TempDir);

impl Pki {
    pub(crate) fn new() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let leaf = leaf.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
        let pki = Self(tempfile::tempdir().unwrap());
        for (name, pem) in [("ca", authority_pem), ("cert", leaf.pem()), ("key", key.serialize_pem())] {
            std::fs::write(pki.file(name), pem).unwrap();
            // A key that everybody can read is refused.
            std::fs::set_permissions(pki.file(name), Permissions::from_mode(0o600)).unwrap();
        }
        pki
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    fn pem(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.file(name)).unwrap()
    }
}

type Tls = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Creates a client that trusts this authority and uses this HTTP version.
pub(crate) fn client(pki: &Pki, version: Version) -> Tls {
    let builder = HttpsConnectorBuilder::new().with_tls_config(client_config(pki)).https_only();
    let connector =
        if version == Version::HTTP_2 { builder.enable_http2().build() } else { builder.enable_http1().build() };
    Client::builder(TokioExecutor::new()).build(connector)
}

/// Returns a configuration that trusts only this authority.
pub(crate) fn client_config(pki: &Pki) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(pki.certificate("ca")).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    config.with_no_client_auth()
}

fn post(address: SocketAddr, path: &str, key: &str) -> Request<Full<Bytes>> {
    let request = Request::post(format!("https://{address}{path}")).header("idempotency-key", key);
    request.body(Full::from("{}")).unwrap()
}

pub(crate) async fn secure_gateway(api: SocketAddr, pki: &Pki) -> Gateway {
    secure_gateway_with(api, pki, &[]).await
}

pub(crate) async fn secure_gateway_with(api: SocketAddr, pki: &Pki, flags: &[&str]) -> Gateway {
    let (cert, key) = (pki.path("cert"), pki.path("key"));
    let secure = ["--tenant", "none", "--tls-cert", &cert, "--tls-key", &key];
    Gateway::start(api, "memory:", &[&secure, flags].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_clients_may_use_http1_and_http2() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    for (number, version) in [(1, Version::HTTP_2), (2, Version::HTTP_11)] {
        let client = client(&pki, version);
        for replayed in [false, true] {
            let got = client.request(post(gateway.public, "/charges", &format!("k{number}"))).await.unwrap();
            assert_eq!((got.version(), got.status().as_u16()), (version, 201));
            assert_eq!(got.headers().contains_key("idempotent-replayed"), replayed);
            assert_eq!(got.into_body().collect().await.unwrap().to_bytes(), format!("answer {number}"));
        }
        let seen = &api.seen()[number - 1].headers;
        let host = gateway.public.to_string();
        for (name, value) in [("x-forwarded-proto", "https"), ("host", &host), ("x-forwarded-host", &host)] {
            assert_eq!(seen[name], value, "{name}");
        }
    }
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"POST /charges HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(wire.read_response().await.is_none(), "a request without TLS must get no response");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookies_of_http2_reach_the_api_as_one_field_h47() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    for method in [Method::GET, Method::POST] {
        let mut request = post(gateway.public, "/charges", "k");
        *request.method_mut() = method;
        for cookie in ["a=1", "b=2", "c=3"] {
            request.headers_mut().append("cookie", cookie.parse().unwrap());
        }
        assert_eq!(client(&pki, Version::HTTP_2).request(request).await.unwrap().status(), 201);
        let seen = api.seen().pop().unwrap();
        let cookies: Vec<_> = seen.headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_may_have_100_fields_over_http1_and_http2_h47() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for (more, status) in [(80, 201), (101, 431)] {
            let mut request = post(gateway.public, "/charges", &format!("{version:?}-{more}"));
            for number in 0..more {
                request.headers_mut().insert(format!("x-{number}").parse::<HeaderName>().unwrap(), 1.into());
            }
            let got = client(&pki, version).request(request).await.unwrap();
            assert_eq!(got.status(), status, "{version:?} {more}");
        }
    }
    assert_eq!(api.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_does_not_stop_its_request_h13() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    let client = client(&pki, Version::HTTP_2);
    let mut slow = Box::pin(client.request(post(gateway.public, "/slow", "k")));
    until("the API has received the request", async || {
        assert!(slow.as_mut().now_or_never().is_none());
        !api.seen().is_empty()
    })
    .await;
    drop(slow);
    until("the gateway has handled the reset", async || {
        let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
        page.contains("hapax_gateway_requests_total{status=\"none\"} 1")
    })
    .await;
    api.release_slow();
    until("the answer is recorded", async || {
        let got = client.request(post(gateway.public, "/slow", "k")).await.unwrap();
        got.headers().contains_key("idempotent-replayed")
    })
    .await;
    assert_eq!(api.seen().len(), 1);
    gateway.terminate();
    let lines = access(&gateway.wait_for_exit().1);
    let line = lines.iter().find(|line| line["outcome"] == "client-gone").expect("a line of the access log");
    assert_eq!(line["operation"].as_str().unwrap(), api.seen()[0].headers["hapax-operation"], "{line}");
    assert_eq!(line["rk"].as_str().map(str::len), Some(8), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_resets_does_not_block_others() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    let flooding = client(&pki, Version::HTTP_2);
    stream::iter(0..2_000)
        .for_each_concurrent(64, |number| {
            let mut request = Box::pin(flooding.request(post(gateway.public, "/charges", &format!("flood-{number}"))));
            async move {
                // Dropping the request after zero to four polls resets its stream at different stages.
                for _ in 0..number % 5 {
                    if request.as_mut().now_or_never().is_some() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
    let other = client(&pki, Version::HTTP_2);
    assert_eq!(other.request(post(gateway.public, "/charges", "other")).await.unwrap().status(), 201);
    let mut keys: Vec<_> = api.seen().iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    let all = keys.len();
    keys.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    keys.dedup();
    assert_eq!(keys.len(), all, "a key had two effects");
}

/// Starts a TLS proxy with this certificate in front of the API.
pub(crate) async fn start_tls_proxy(api: SocketAddr, pki: &Pki) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (acceptor, address) = (tls_acceptor(pki, &[]), listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut secure = acceptor.accept(stream).await.ok()?;
                let mut plain = tokio::net::TcpStream::connect(api).await.ok()?;
                tokio::io::copy_bidirectional(&mut secure, &mut plain).await.ok()
            });
        }
    });
    address
}

/// Returns an acceptor with this certificate that offers these protocols.
pub(crate) fn tls_acceptor(pki: &Pki, protocols: &[&str]) -> TlsAcceptor {
    let key = PrivateKeyDer::from_pem_file(pki.file("key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = config.with_single_cert(vec![pki.certificate("cert")], key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_api_needs_a_trusted_certificate() {
    let (api, pki, stranger) = (Api::start().await, Pki::new(), Pki::new());
    let secure = format!("https://{}", start_tls_proxy(api.address, &pki).await);
    for (authority, status) in [(&stranger, 502), (&pki, 201)] {
        let flags = ["--upstream", &secure, "--upstream-ca", &authority.path("ca")];
        let gateway = Gateway::start_with("memory:", &flags).await;
        let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
        assert_eq!(got.status, status, "{}", got.body);
        if status == 502 {
            assert_eq!(got.problem(), "upstream-unreachable", "nothing may be sent to an untrusted API");
        }
    }
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_loads_a_new_certificate_and_keeps_the_old_one_if_the_new_is_bad() {
    let (api, old, new, log) = (Api::start().await, Pki::new(), Pki::new(), tempfile::NamedTempFile::new().unwrap());
    let (cert, key) = (old.path("cert"), old.path("key"));
    let flags = ["--tenant", "none", "--tls-cert", &cert, "--tls-key", &key, "--log-file"];
    let flags = [&flags[..], &[log.path().to_str().unwrap()]].concat();
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    let is_served = async |pki: &Pki, key: &str| {
        // A new client has no session to resume.
        client(pki, Version::HTTP_11).request(post(gateway.public, "/charges", key)).await.is_ok()
    };
    assert!(is_served(&old, "k1").await);
    let hang_up = || rustix::process::kill_process(gateway.pid(), rustix::process::Signal::HUP).unwrap();
    let is_logged = |text: &str| std::fs::read_to_string(log.path()).unwrap().contains(text);
    for (bad, is_of_key) in [("nothing".to_owned(), false), (new.pem("cert"), true)] {
        std::fs::write(old.file("cert"), &bad).unwrap();
        hang_up();
        let reason = if is_of_key { "does not belong to" } else { "contains no certificate" };
        until("the refusal is logged", async || is_logged(reason)).await;
        assert!(is_served(&old, "k2").await, "the old certificate is kept");
    }
    std::fs::write(old.file("key"), new.pem("key")).unwrap();
    let rotated = log.path().with_extension("rotated");
    std::fs::rename(log.path(), &rotated).unwrap();
    hang_up();
    until("the new certificate is used", async || is_served(&new, "k3").await).await;
    until("the new file names the certificate", async || {
        let logs = std::fs::read_to_string(log.path()).unwrap_or_default();
        logs.contains("the log file is open again") && logs.contains(&cert) && logs.contains("\"is_new\":true")
    })
    .await;
    std::fs::remove_file(rotated).unwrap();
    assert!(!is_served(&old, "k4").await);
}

/// Replaces the key by a pipe from which it can be read once.
fn move_key_to_pipe(pki: &Pki) {
    let (key, pem) = (pki.file("key"), pki.pem("key"));
    std::fs::remove_file(&key).unwrap();
    assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&key).status().unwrap().success());
    // The write ends when the gateway opens the pipe.
    std::thread::spawn(move || std::fs::write(key, pem));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_file_is_opened_again_while_the_key_of_the_certificate_cannot_be_read() {
    let (api, pki, directory) = (Api::start().await, Pki::new(), tempfile::tempdir().unwrap());
    move_key_to_pipe(&pki);
    let file = directory.path().join("hapax.log");
    let gateway = secure_gateway_with(api.address, &pki, &["--log-file", file.to_str().unwrap()]).await;
    // From the first signal on, the gateway waits for a key that nobody writes.
    for number in 1..=3 {
        std::fs::rename(&file, directory.path().join(format!("hapax.log.{number}"))).unwrap();
        rustix::process::kill_process(gateway.pid(), rustix::process::Signal::HUP).unwrap();
        until("the log has a new file", async || file.exists()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_the_certificate_may_come_from_a_pipe() {
    let (api, pki) = (Api::start().await, Pki::new());
    move_key_to_pipe(&pki);
    let gateway = secure_gateway(api.address, &pki).await;
    let got = client(&pki, Version::HTTP_11).request(post(gateway.public, "/charges", "k")).await.unwrap();
    assert_eq!(got.status(), 201);
}

#[test]
fn unusable_certificate_files_are_refused_with_the_reason() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let empty = pki.file("empty");
    std::fs::write(&empty, "nothing").unwrap();
    // It has the form of a key. No provider knows its algorithm.
    let strange = pki.file("strange");
    std::fs::write(&strange, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    std::fs::set_permissions(&strange, Permissions::from_mode(0o600)).unwrap();
    let cases: [(&[&str], &Path, &Path, &str); 4] = [
        (&[], &pki.file("cert"), &strange, "strange cannot be used; create an RSA, ECDSA"),
        (&[], &pki.file("cert"), &stranger.file("key"), "does not belong to"),
        (&[], &empty, &pki.file("key"), "contains no certificate"),
        (
            &["--upstream", "https://127.0.0.1:9", "--upstream-ca", &pki.path("empty")],
            &pki.file("cert"),
            &pki.file("key"),
            "empty contains no certificate",
        ),
    ];
    for (more, cert, key, reason) in cases {
        let mut command = crate::harness::hapax();
        command.args(["gateway", "--store", "memory:", "--tls-cert"]).arg(cert).arg("--tls-key").arg(key);
        if more.is_empty() {
            command.args(["--upstream", "http://127.0.0.1:9"]);
        }
        let output = command.args(more).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && errors.contains(reason), "{reason}: {errors}");
    }
}
