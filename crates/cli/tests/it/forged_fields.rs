//! Header fields that a service behind the gateway could take for other ones.

use http::{HeaderMap, Request};
use http_body_util::Full;

use crate::harness::{Api, ClientResponse, Gateway};
use crate::raw_http::RawConnection;

async fn send(gateway: &Gateway, method: &str, key: &str, fields: &[(&str, &str)]) -> ClientResponse {
    let request = Request::builder().method(method).uri(format!("http://{}/charges", gateway.public));
    let request = request.header("idempotency-key", key).header("x-account", "acme");
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    gateway.send(request.body(Full::from("{}")).unwrap()).await.unwrap()
}

/// Services that run behind WSGI or CGI read `X_Account` and `X-Account` as the same field.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_imitates_another_one_by_an_underscore_is_refused_h46() {
    let api = Api::start().await;
    for policy in ["drop", "forward"] {
        let flags = ["--tenant", "header:X-Account", "--underscore-headers", policy];
        let gateway = Gateway::start(api.address, "memory:", &flags).await;
        for name in [
            "Hapax_Token",
            "hapax-to_ken",
            "Hapax_Operation",
            "X_Account",
            "Idempotency_Key",
            "Authorization_",
            "authorization",
            "X_Forwarded_For",
            "X-Forwarded_Proto",
            "X_forwarded-host",
            "X_Real_IP",
            "Content_Length",
            "Content_Type",
            "Transfer_Encoding",
            "Keep_Alive",
            "Proxy_Connection",
            "HTTP2_Settings",
        ] {
            for method in ["POST", "PUT"] {
                let got = send(&gateway, method, "key-1", &[(name, "1")]).await;
                let is_forged = name.contains('_') && !name.ends_with('_');
                let status = if is_forged { 400 } else { 201 };
                assert_eq!(got.status.as_u16(), status, "{method} {name}: {}", got.body);
                if is_forged {
                    assert!(got.body.contains("underscore"), "{name}: {}", got.body);
                }
            }
        }
    }
    assert!(api.seen().iter().all(|seen| !seen.headers.contains_key("x_account")));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_names_with_an_underscore_are_dropped_unless_the_gateway_forwards_them_h46() {
    let api = Api::start().await;
    for (flags, is_forwarded) in [
        (&["--tenant", "header:X-Account"][..], false),
        (&["--tenant", "header:X-Account", "--underscore-headers", "forward"], true),
    ] {
        let gateway = Gateway::start(api.address, "memory:", flags).await;
        for method in ["POST", "PUT"] {
            let before = api.count();
            let got = send(&gateway, method, &format!("{method}-key"), &[("x_trace", "1"), ("x-other", "2")]).await;
            assert_eq!(got.status, 201);
            let headers = &api.seen()[before].headers;
            assert_eq!((headers.contains_key("x_trace"), headers.contains_key("x-other")), (is_forwarded, true));
        }
    }
}

/// A tenant's field may itself have an underscore. Then the name with the hyphen is the imitation.
#[tokio::test(flavor = "multi_thread")]
async fn a_configured_name_with_an_underscore_is_kept_h46() {
    let api = Api::start().await;
    let flags = ["--tenant", "header:X_Shop", "--key-from", "header:My_Key"];
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    let (shop, key) = (("x_shop", "acme"), ("my_key", "key-1"));
    assert_eq!(send(&gateway, "POST", "unused", &[shop, key]).await.status, 201);
    assert!(send(&gateway, "POST", "unused", &[shop, key]).await.is_replayed());
    assert_eq!(api.seen()[0].headers["x_shop"], "acme");
    for imitation in ["x-shop", "my-key"] {
        let got = send(&gateway, "POST", "unused", &[shop, key, (imitation, "other")]).await;
        assert_eq!(got.status, 400, "{imitation}");
    }
}

/// Sends a chunked request with these trailers to the API.
async fn put_with_trailers(gateway: &Gateway, trailers: &str) {
    let mut wire = RawConnection::to(gateway.public).await;
    let head = "PUT /stored HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    wire.send_bytes(format!("{head}2\r\n{{}}\r\n0\r\n{trailers}\r\n").as_bytes()).await;
    assert_eq!(wire.read_response_to("PUT").await.unwrap().status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_request_obey_the_rules_of_its_head_h45() {
    let api = Api::start().await;
    let plain = format!("h2c://{}", crate::http2::serve_api(&api, None).await);
    let gateway = Gateway::start_with("memory:", &["--tenant", "header:X-Account", "--upstream", &plain]).await;
    put_with_trailers(
        &gateway,
        "x-checksum: 7\r\nhapax-token: 9\r\nhapax_token: 9\r\nx-account: eve\r\nx_account: eve\r\nx_trace: 1\r\n\
         idempotency-key: k\r\nauthorization: eve\r\nx-forwarded-for: 10.0.0.1\r\nforwarded: for=1\r\n\
         x-real-ip: 1.2.3.4\r\nx-forwarded_for: 10.0.0.1\r\n\
         content-length: 9\r\nhost: b\r\nkeep-alive: 9\r\ncookie: a=b\r\ncontent-type: a/b\r\nexpect: 100-continue\r\n",
    )
    .await;
    let trailers: &HeaderMap = &api.seen()[0].trailers;
    let names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["x-checksum"]);
}

/// Many services trust the first value of these fields.
#[tokio::test(flavor = "multi_thread")]
async fn fields_about_another_client_are_replaced_unless_a_trusted_proxy_sends_them_h58() {
    let api = Api::start().await;
    let forged = [
        ("forwarded", "for=1.2.3.4;proto=https;host=evil.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-port", "443"),
        ("x-forwarded-prefix", "/admin"),
        ("x-real-ip", "1.2.3.4"),
    ];
    for (network, is_trusted) in [(&[][..], false), (&["10.0.0.0/8"], false), (&["10.0.0.0/8", "127.0.0.1/32"], true)] {
        let proxies = network.iter().flat_map(|network| ["--trusted-proxy", network]);
        let flags: Vec<&str> = ["--tenant", "none"].into_iter().chain(proxies).collect();
        let gateway = Gateway::start(api.address, "memory:", &flags).await;
        for method in ["POST", "GET"] {
            let before = api.count();
            assert_eq!(send(&gateway, method, &format!("key-{method}"), &forged).await.status, 201);
            let headers = &api.seen()[before].headers;
            for (name, value) in forged {
                let got: Vec<_> = headers.get_all(name).iter().map(|got| got.to_str().unwrap()).collect();
                let own = match name {
                    "x-forwarded-proto" => vec!["http".to_owned()],
                    "x-forwarded-host" => vec![gateway.public.to_string()],
                    _ => vec![],
                };
                if is_trusted {
                    assert!(got.len() == 1 && got[0].starts_with(value), "{name}: {got:?}");
                } else {
                    assert_eq!(got, own, "{name}");
                }
            }
            assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        }
        gateway.terminate();
        let (_, logs) = gateway.wait_for_exit();
        let count = logs.matches("name its network with --trusted-proxy").count();
        assert_eq!(count, usize::from(!is_trusted), "{logs}");
    }
}
