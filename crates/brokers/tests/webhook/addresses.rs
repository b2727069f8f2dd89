use std::sync::Arc;

use hapax_brokers::{WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
use hapax_core::ErrorKind;
use hapax_core::outbox::Sink;
use hapax_core::runtime::Tokio;
use hapax_core::store::Severity;
use tokio::net::TcpListener;

use crate::receiver::{Act, Receiver};
use crate::world::{ChangingResolver, in_time, local, publish, sink_with, word};

/// Listens where nobody may connect: on 127.0.0.2, with the port of the receiver.
async fn trap(receiver: &Receiver) -> Receiver {
    Receiver::start(&format!("127.0.0.2:{}", receiver.port), |_, _| Act::Answer(200, vec![])).await
}

fn hooks_example(receiver: &Receiver) -> String {
    format!("http://hooks.example:{}/", receiver.port)
}

#[tokio::test]
async fn a_name_that_changes_its_address_after_the_check_gains_nothing() {
    let receiver = Receiver::answering(200).await;
    let trap = trap(&receiver).await;
    // The check sees a public address, and the request a private one.
    let resolver = ChangingResolver::new(&[&["93.184.216.34"], &["127.0.0.2"]]);
    let sink = sink_with([("e", local(hooks_example(&receiver)))], Some(Arc::clone(&resolver) as _));
    assert!(in_time(sink.check()).await.unwrap().is_empty());
    let (word, reason) = word(&publish(&sink, 1).await);
    assert!(word == "not-published" && reason.contains("127.0.0.2"), "{word}: {reason}");
    assert_eq!((resolver.lookups(), trap.connections()), (2, 0));
}

#[tokio::test]
async fn the_connection_goes_to_the_address_that_was_checked() {
    // Each connection carries one request, so that every request resolves the name.
    let script = |_, _: &_| Act::Answer(200, vec!["connection: close".into()]);
    let receiver = Receiver::start("127.0.0.1:0", script).await;
    let trap = trap(&receiver).await;
    let resolver = ChangingResolver::new(&[&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.2", "127.0.0.1"]]);
    let sink = sink_with([("e", local(hooks_example(&receiver)))], Some(Arc::clone(&resolver) as _));
    assert_eq!(word(&publish(&sink, 1).await).0, "yes");
    assert_eq!(resolver.lookups(), 1, "a second lookup could get another answer");
    assert_eq!(word(&publish(&sink, 2).await).0, "not-published");
    assert_eq!(word(&publish(&sink, 3).await).0, "yes", "the allowed one of two addresses is used");
    assert_eq!((receiver.connections(), trap.connections(), resolver.lookups()), (2, 0, 3));
    assert_eq!(receiver.got()[0].header("host"), format!("hooks.example:{}", receiver.port));
}

#[tokio::test]
async fn a_check_names_the_endpoint_whose_host_leads_into_a_private_network() {
    let receiver = Receiver::answering(200).await;
    for (answer, severity) in [(["10.0.0.7"].as_slice(), Some(Severity::Warn)), (&["127.0.0.1"], None)] {
        let resolver = ChangingResolver::new(&[answer]);
        let sink = sink_with([("e", local(hooks_example(&receiver)))], Some(resolver));
        let findings = in_time(sink.check()).await.unwrap();
        assert_eq!(findings.first().map(|finding| finding.severity), severity, "{findings:?}");
        assert!(findings.iter().all(|finding| finding.message.contains("`e`") && finding.message.contains("10.0.0.7")));
    }
    assert_eq!(receiver.connections(), 0, "a check sends nothing");
}

#[tokio::test]
async fn an_address_in_the_url_is_checked_in_every_spelling() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "１２７.0.0.1",
    ] {
        let error = open(WebhookEndpoint::new(format!("https://{host}:{port}/"))).err().unwrap();
        assert!(error.to_string().contains("is not a public address"), "{host}: {error}");
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_with_the_name_of_the_endpoint() {
    type Change = fn(&mut WebhookEndpoint);
    let changes: [(Change, &str); 13] = [
        (|endpoint| endpoint.url = "shop.example/hook".into(), "cannot be read"),
        (|endpoint| endpoint.url = "ftp://shop.example/".into(), "neither https nor http"),
        (|endpoint| endpoint.url = "http://shop.example/".into(), "not https"),
        (|endpoint| endpoint.url = "https://me:hidden@shop.example/".into(), "a user or a password"),
        (|endpoint| endpoint.url = "https://hidden@shop.example/".into(), "a user or a password"),
        (|endpoint| endpoint.url = "https://shop.example/#hidden".into(), "fragment"),
        (|endpoint| endpoint.secrets.clear(), "no secret"),
        (|endpoint| endpoint.secrets.push(WebhookSecret::new("whsec_")), "secret 2 is empty"),
        (|endpoint| endpoint.secrets.push(WebhookSecret::new("whsec_hidden*")), "secret 2 is not"),
        (|endpoint| endpoint.allowed_networks.push("inside".into()), "inside is no network"),
        (|endpoint| endpoint.headers.push(("webhook-id".into(), "hidden".into())), "`webhook-id`"),
        (|endpoint| endpoint.max_in_flight = 0, "1 to 10,000"),
        (|endpoint| endpoint.authorities = Some("/nowhere/ca.pem".into()), "/nowhere/ca.pem"),
    ];
    for (change, reason) in changes {
        let mut endpoint = WebhookEndpoint::new("https://shop.example/hook");
        endpoint.secrets = vec![WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
        change(&mut endpoint);
        let error = open(endpoint).err().unwrap_or_else(|| panic!("{reason}"));
        let text = format!("{error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(text.contains("`orders`") && text.contains(reason) && !text.contains("hidden"), "{reason}: {text}");
    }
    let empty = WebhookSink::open(WebhookSinkConfig::default(), Arc::new(Tokio::current()));
    assert_eq!(empty.err().map(|error| error.kind()), Some(ErrorKind::Invalid));
}

fn open(endpoint: WebhookEndpoint) -> Result<WebhookSink, hapax_core::Error> {
    let mut config = WebhookSinkConfig::default();
    config.endpoints.insert("orders".into(), endpoint);
    WebhookSink::open(config, Arc::new(Tokio::current()))
}
