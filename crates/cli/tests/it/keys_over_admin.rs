//! The commands of the guide about unknown outcomes, as they stand there: over the admin address of a gateway.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::harness::{Api, ClientResponse, Gateway, GatewayClient, sqlite, until};
use crate::keys_commands::{keys, text};
use crate::raw_http::RawConnection;

/// Posts an order of the tenant acme.
async fn order(client: &GatewayClient) -> Option<ClientResponse> {
    let request = Request::post(format!("http://{}/slow", client.public)).header("host", "a");
    let request = request.header("x-account", "acme").header("idempotency-key", "order-7");
    client.send(request.body(Full::<Bytes>::from("{}")).unwrap()).await
}

/// A gateway that was killed while the API had an order, and runs again.
async fn killed_during_an_order(api: &Api, store: &str) -> Gateway {
    let flags = ["--tenant", "header:x-account", "--lease", "1s", "--on-lapse", "hold"];
    let mut gateway = Gateway::start(api.address, store, &flags).await;
    let client = gateway.client();
    let request = tokio::spawn(async move { order(&client).await });
    api.wait_for_requests(1).await;
    let public = gateway.kill_and_return_address();
    assert!(request.await.unwrap().is_none(), "the client gets no answer");
    Gateway::start_at(api.address, store, &flags, public).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_for_many_unknown_outcomes_work_over_the_admin_address() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = killed_during_an_order(&api, &sqlite(directory.path())).await;
    let admin = format!("http://{}", gateway.admin);
    let run = |arguments: &[&str]| keys(&[arguments, &["--admin", &admin]].concat());
    let mut found = Vec::new();
    until("the lease has expired", async || {
        found = run(&["list", "--state", "unknown"]).1;
        !found.is_empty()
    })
    .await;
    let rk = text(&found[0]["rk"]).to_owned();
    let show = || run(&["show", "--tenant", "acme", "--key", "order-7"]).1.remove(0);
    assert_eq!((text(&show()["rk"]), text(&show()["state"])), (&*rk, "unknown"));
    assert_eq!(run(&["show", "--tenant", "other", "--key", "order-7"]).0, 1, "another tenant has no such key");
    let older_than = |age: &str| run(&["list", "--state", "unknown", "--older-than", age]).1.len();
    assert_eq!((older_than("10min"), older_than("1ms")), (0, 1));

    let resolve = ["resolve", "--state", "unknown", "--not-done"];
    let resolve = |more: &[&str]| run(&[&resolve[..], more].concat());
    assert_eq!(resolve(&["--older-than", "10min", "--dry-run"]).1.len(), 0);
    let (code, planned, error) = resolve(&["--dry-run"]);
    assert!(code == 0 && planned.len() == 1 && error.contains("nothing is written"), "{code} {error}");
    assert_eq!(text(&show()["state"]), "unknown");
    assert_eq!(resolve(&["--older-than", "10min", "--all-namespaces"]).1.len(), 0);
    assert_eq!(text(&show()["state"]), "unknown");
    let (code, written, error) = resolve(&["--all-namespaces"]);
    assert!(code == 0 && written.len() == 1 && written[0]["after"]["state"] == "released", "{code} {error}");
    (0..2).for_each(|_| api.release_slow());
    assert_eq!(order(&gateway.client()).await.unwrap().status, 201);
    assert_eq!(api.count(), 2, "the retry ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_may_name_an_ipv6_address_that_the_configuration_allows() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--admin-host", "fd00:0::1"]).await;
    for (host, is_allowed) in [("[fd00::1]:8081", true), ("[fd00::1]", true), ("[fd00::2]", false)] {
        let mut wire = RawConnection::to(gateway.admin).await;
        let fields = format!("host: {host}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n");
        let head = format!("POST /api/v1/records/{}/release HTTP/1.1\r\n{fields}\r\n", "0".repeat(32));
        wire.send_bytes(format!("{head}{{}}").as_bytes()).await;
        let answer = wire.read_response().await.unwrap();
        assert_eq!(answer.status != 421, is_allowed, "{host}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_the_token_of_an_admin_address_names_the_flag() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let file = directory.path().join("token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.display().to_string();
    let gateway = Gateway::start(api.address, "memory:", &["--admin-token-file", &file]).await;
    let admin = format!("http://{}", gateway.admin);
    let (code, _, error) = keys(&["list", "--admin", &admin]);
    assert!(code == 3 && error.contains("add --admin-token-file FILE"), "{code} {error}");
    assert_eq!(keys(&["list", "--admin", &admin, "--admin-token-file", &file]).0, 0);
}
