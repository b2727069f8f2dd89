//! Connections over TLS.

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, stream};
use hapax_brokers::{NatsSource, NatsUrl};
use hapax_core::ErrorKind;
use hapax_testkit::servers::NatsServer;

use crate::authority::CertificateAuthority;
use crate::common::runtime;

pub(crate) async fn a_server_with_a_private_authority_is_trusted_and_sees_the_client() {
    let authority = CertificateAuthority::new();
    let path = |name: &str| authority.path(name);
    let (cert, key, ca) = (path("server-cert"), path("server-key"), path("ca"));
    let arguments = ["--tls", "--tlsverify", "--tlscert", &cert, "--tlskey", &key, "--tlscacert", &ca];
    let server = NatsServer::start(&arguments).await.unwrap();
    let client = (path("client-cert").into(), path("client-key").into());
    let options =
        ConnectOptions::new().add_root_certificates(ca.clone().into()).add_client_certificate(client.0, client.1);
    let context = jetstream::new(options.connect(server.address().to_string()).await.unwrap());
    context.create_stream(stream::Config { name: "s".into(), ..Default::default() }).await.unwrap();
    let connect = async |parameters: String| {
        let url: NatsUrl = format!("{}/s?durable=d{parameters}", server.url()).parse().unwrap();
        NatsSource::connect(&url, runtime()).await.map(drop)
    };
    let identity = format!("&cert={}&key={}", path("client-cert"), path("client-key"));
    connect(format!("&ca={ca}{identity}")).await.unwrap();
    // Neither an unknown authority nor a missing certificate of the client is accepted.
    assert!(connect(identity).await.is_err());
    assert!(connect(format!("&ca={ca}")).await.is_err());
    authority.write("none", "no certificate");
    let error = connect(format!("&ca={}", path("none"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable, "{error}");
}
