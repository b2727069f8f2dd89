//! SASL and TLS of Kafka.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hapax_brokers::{KafkaSource, KafkaUrl};
use hapax_core::broker::Source as _;
use hapax_core::{Error, ErrorKind};
use hapax_testkit::servers::KafkaServer;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

#[cfg(feature = "kafka-tls")]
use crate::authority::CertificateAuthority;
use crate::common::{DEADLINE, runtime, take, texts};

/// The properties of a broker whose clients log in. The name of its only listener for clients is PLAINTEXT.
const LOGIN: [&str; 6] = [
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
     username=\"worker\" password=\"open sesame\" user_worker=\"open sesame\";",
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config=\
     org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config=\
     org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "--add-scram=SCRAM-SHA-256=[name=worker,password=open sesame]",
];

async fn start(properties: &[String]) -> KafkaServer {
    let scram = "--add-scram=SCRAM-SHA-512=[name=worker,password=open sesame]";
    let properties: Vec<&str> = LOGIN.into_iter().chain([scram]).chain(properties.iter().map(String::as_str)).collect();
    KafkaServer::start(&properties).await.unwrap()
}

/// Creates a topic with one message.
async fn create_topic(config: &ClientConfig) {
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
    let created = admin.create_topics([&NewTopic::new("orders", 1, TopicReplication::Fixed(1))], &options).await;
    assert_eq!(created.unwrap(), [Ok("orders".to_owned())]);
    let producer: BaseProducer = config.create().unwrap();
    producer.send(BaseRecord::<(), _>::to("orders").payload("five")).map_err(|(error, _)| error).unwrap();
    producer.flush(DEADLINE).unwrap();
}

/// The login of a client that is not ours.
fn login(server: &KafkaServer, protocol: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", server.address().to_string()).set("security.protocol", protocol);
    config.set("sasl.mechanism", "PLAIN").set("sasl.username", "worker").set("sasl.password", "open sesame");
    config
}

async fn connect(server: &KafkaServer, user: &str, parameters: &str) -> Result<KafkaSource, Error> {
    static GROUPS: AtomicUsize = AtomicUsize::new(0);
    let group = GROUPS.fetch_add(1, Ordering::Relaxed);
    let url = format!("kafka://{user}{}/orders?group=g-{group}{parameters}", server.address());
    let url: KafkaUrl = url.parse().unwrap();
    assert!(!format!("{url:?}").contains("sesame"), "{url:?}");
    KafkaSource::connect(&url, runtime()).await
}

/// The group of this login gets the message.
async fn works(server: &KafkaServer, user: &str, parameters: &str) {
    let mut source = connect(server, user, parameters).await.unwrap();
    assert_eq!(texts(&take(&mut source, 1).await), ["five"], "{parameters}");
    source.close().await.unwrap();
}

/// The broker refuses this login long before the broker counts as one that cannot be reached.
async fn is_refused(server: &KafkaServer, user: &str, parameters: &str, why: &str) {
    let begun = Instant::now();
    let error = connect(server, user, parameters).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Unusable, "{user} {parameters}: {error:?}");
    assert!(error.to_string().contains(why) && !format!("{error:?}").contains("sesame"), "{error:?}");
    assert!(begun.elapsed() < DEADLINE / 6, "{:?}", begun.elapsed());
}

pub(crate) async fn a_user_logs_in_and_a_wrong_password_is_refused_at_once() {
    let server = start(&["listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT".into()]).await;
    create_topic(&login(&server, "sasl_plaintext")).await;
    works(&server, "worker:open%20sesame@", "").await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    fs::write(&path, "open sesame\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    works(&server, "worker@", &format!("&password-file={}", path.display())).await;
    let refused = "refuses the credentials";
    is_refused(&server, "worker:other%20sesame@", "", refused).await;
    is_refused(&server, "stranger:open%20sesame@", "", refused).await;
    #[cfg(feature = "kafka-tls")]
    is_refused(&server, "worker:open%20sesame@", "&tls=yes", "does not speak TLS on this port").await;
    #[cfg(feature = "kafka-tls")]
    for mechanism in ["scram-sha-256", "scram-sha-512"] {
        works(&server, "worker:open%20sesame@", &format!("&sasl={mechanism}")).await;
        is_refused(&server, "worker:other%20sesame@", &format!("&sasl={mechanism}"), refused).await;
    }
}

#[cfg(feature = "kafka-tls")]
pub(crate) async fn a_broker_with_a_private_authority_is_trusted_and_sees_the_client() {
    let authority = CertificateAuthority::new();
    let read = |name: &str| fs::read_to_string(authority.path(name)).unwrap();
    authority.write("server", &(read("server-key") + &read("server-cert")));
    let server = start(&[
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_SSL".into(),
        "listener.name.plaintext.ssl.client.auth=required".into(),
        "ssl.keystore.type=PEM".into(),
        "ssl.truststore.type=PEM".into(),
        format!("ssl.keystore.location={}", authority.path("server")),
        format!("ssl.truststore.location={}", authority.path("ca")),
    ])
    .await;
    let (ca, cert, key) = (authority.path("ca"), authority.path("client-cert"), authority.path("client-key"));
    let mut config = login(&server, "sasl_ssl");
    config.set("ssl.ca.location", &ca).set("ssl.certificate.location", &cert).set("ssl.key.location", &key);
    create_topic(&config).await;
    let (user, identity) = ("worker:open%20sesame@", format!("&cert={cert}&key={key}"));
    works(&server, user, &format!("&ca={ca}{identity}")).await;
    works(&server, user, &format!("&sasl=scram-sha-512&ca={ca}{identity}")).await;
    // Neither an unknown authority nor a missing certificate of the client is accepted.
    is_refused(&server, user, &identity, "TLS").await;
    is_refused(&server, user, &format!("&ca={ca}"), "demands one").await;
    let error = connect(&server, user, "").await.expect_err("a listener for TLS");
    assert!(error.kind() == ErrorKind::NotApplied && error.to_string().contains("add `tls=yes`"), "{error:?}");
    is_refused(&server, "worker:other%20sesame@", &format!("&ca={ca}{identity}"), "refuses the credentials").await;
}
