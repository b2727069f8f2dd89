//! The admin listener under hostile clients.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::{Api, Gateway};
use crate::raw_http::RawConnection;

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_keep_probes_from_an_answer() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let mut open = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(gateway.admin).await.unwrap();
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap(),
            // Requests that are answered, and answers that are not read.
            _ => stream.write_all(&b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(50)).await.unwrap(),
        }
        open.push(stream);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        // A new connection each time.
        let probe = crate::harness::GatewayClient::of(gateway.admin);
        assert_eq!(probe.get(path).await.expect("an answer").status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_browser_cannot_read_metrics_under_a_name_of_its_own() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--admin-host", "metrics.example"]).await;
    let ask = async |path: &str, host: &str| {
        let request = Request::get(format!("http://{}{path}", gateway.admin)).header("host", host);
        gateway.send(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap()
    };
    for (host, metrics) in
        [("evil.example:8081", 421), ("localhost", 200), ("127.0.0.1:8081", 200), ("metrics.example", 200)]
    {
        let got = ask("/metrics", host).await;
        assert_eq!(got.status, metrics, "{host}");
        assert_eq!(got.body.contains("hapax_"), metrics == 200, "{host}");
        for probe in ["/healthz", "/readyz"] {
            assert_eq!(ask(probe, host).await.status, 200, "{host} {probe}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_of_another_scheme_is_refused() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for (target, status) in [
        ("/metrics", 200),
        ("http://localhost/metrics", 200),
        ("http://evil.example/metrics", 421),
        ("ftp://localhost/metrics", 400),
        ("gopher://localhost/healthz", 400),
        ("metrics", 400),
        ("*", 400),
    ] {
        let mut wire = RawConnection::to(gateway.admin).await;
        wire.send_bytes(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await;
        assert_eq!(wire.read_response().await.unwrap().status, status, "{target}");
    }
}
