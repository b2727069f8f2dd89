//! From the URL to a connection and a durable consumer that can be used.

use std::future::ready;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{self, Context, consumer, stream};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use hapax_core::{Error, Result};
use hapax_net::tls::certificates_pem;
use hapax_net::url::{ServerUrl, read_secret, read_secret_line};
use tokio::sync::watch;
use tracing::warn;

use super::NatsUrl;
use super::denials::Denials;
use super::driver::{Driver, Driving};
use crate::errors::{invalid, not_applied, unusable};

/// A connection and its durable consumer.
pub(super) struct Connected {
    pub(super) driver: Driver,
    pub(super) consumer: consumer::Info,
    /// When the stream was created, which tells it from an earlier one of the same name.
    pub(super) created: String,
}

/// As many messages as one lane holds at most.
const MAX_ACK_PENDING: i64 = 10_000;

/// How long the server may take for a call of its API.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn connect(url: &NatsUrl) -> Result<Connected> {
    let driver = Driver::connect(&url.url).await?;
    let (consumer, created) = driver.denials().watch("", open(&driver.client(), url)).await??;
    Ok(Connected { driver, consumer, created })
}

async fn open(client: &Client, url: &NatsUrl) -> Result<(consumer::Info, String)> {
    let mut context = jetstream::new(client.clone());
    context.set_timeout(PATIENCE);
    let stream = open_stream(&context, url).await?;
    let consumer = open_consumer(&stream, url).await?.cached_info().clone();
    check(&consumer.config, url)?;
    warn_about_order(&consumer, url);
    let created = stream.cached_info().created.unix_timestamp_nanos().to_string();
    Ok((consumer, created))
}

/// A connection alone, which comes back by itself as long as its driver lives.
pub(super) async fn start_driver(url: &ServerUrl) -> Result<Driving> {
    let addresses = url.hosts().iter().map(|host| format!("nats://{host}").parse::<ServerAddr>());
    let addresses = addresses.collect::<Result<Vec<_>, _>>().map_err(|_| invalid("a host in the URL is not valid"))?;
    let denials = Denials::new();
    let noting = denials.clone();
    // The callback is dropped when the task of the driver has ended, also by a panic.
    let (lives, death) = watch::channel(());
    let options = options(url)?.event_callback(move |event| {
        let _lives = &lives;
        noting.note(&event);
        ready(())
    });
    let client = async_nats::connect_with_options(addresses, options).await.map_err(refused)?;
    let jetstream = jetstream::new(client.clone());
    Ok(Driving { client, jetstream, denials, death, earlier: 0 })
}

fn options(url: &ServerUrl) -> Result<ConnectOptions> {
    let mut options = ConnectOptions::new().name("hapax").request_timeout(None);
    let credentials = url.credentials()?;
    options = match (credentials.user, credentials.password, url.parameter("token-file")) {
        (_, _, Some(path)) => options.token(read_secret_line(path)?),
        (Some(user), Some(password), None) => options.user_and_password(user, password),
        (Some(token), None, None) => options.token(token),
        (None, _, None) => options,
    };
    if let Some(path) = url.parameter("creds-file") {
        // The error of the driver may show a part of the file.
        let broken = |_| unusable(format!("there is no JWT with a seed in {path}, which is named in the URL"));
        // The driver demands that the last line has an end.
        options = options.credentials(&(read_secret_line(path)? + "\n")).map_err(broken)?;
    }
    if let Some(path) = url.parameter("nkey-file") {
        let seed = read_secret_line(path)?;
        if !seed.starts_with("SU") {
            return Err(unusable(format!("there is no seed of a user in {path}, which is named in the URL")));
        }
        options = options.nkey(seed);
    }
    if url.uses_tls()? {
        options = options.require_tls(true);
    }
    if let Some(path) = url.parameter("ca") {
        // The driver takes a file without certificates, and then trusts no server by it.
        certificates_pem(path.as_ref())?;
        options = options.add_root_certificates(path.into());
    }
    if let (Some(cert), Some(key)) = (url.parameter("cert"), url.parameter("key")) {
        read_secret(key)?;
        options = options.add_client_certificate(cert.into(), key.into());
    }
    Ok(options)
}

fn refused(error: async_nats::ConnectError) -> Error {
    let error_for = match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            unusable("the NATS server refuses the credentials")
        }
        ConnectErrorKind::ServerParse => invalid("a host in the URL is not valid"),
        ConnectErrorKind::Tls => unusable("TLS with the NATS server fails"),
        ConnectErrorKind::Dns | ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
            not_applied("no NATS server can be reached")
        }
    };
    error_for.caused_by(error)
}

async fn open_stream(context: &Context, url: &NatsUrl) -> Result<stream::Stream> {
    context.get_stream(url.stream()).await.map_err(|error| match error.kind() {
        GetStreamErrorKind::JetStream(reply) if reply.code() == 404 => {
            unusable(format!("the NATS server has no stream `{}`: create it first", url.stream())).caused_by(error)
        }
        GetStreamErrorKind::EmptyName
        | GetStreamErrorKind::Request
        | GetStreamErrorKind::InvalidStreamName
        | GetStreamErrorKind::JetStream(_) => not_applied("JetStream does not reply").caused_by(error),
    })
}

async fn open_consumer(stream: &stream::Stream, url: &NatsUrl) -> Result<Consumer<pull::Config>> {
    use async_nats::jetstream::context::ConsumerInfoErrorKind as Kind;
    let durable = url.durable();
    match stream.consumer_info(durable).await {
        // It is a consumer of another kind if this fails.
        Ok(_) => {
            stream.get_consumer(durable).await.map_err(|error| unsuited(url, "is not a pull consumer").caused_by(error))
        }
        Err(error) if matches!(error.kind(), Kind::NotFound) => {
            let created = stream.create_consumer(missing(url)).await;
            created.map_err(|error| unusable(format!("cannot create the consumer `{durable}`")).caused_by(error))
        }
        Err(error) => Err(not_applied("JetStream does not reply").caused_by(error)),
    }
}

/// The configuration of a consumer that is created.
fn missing(url: &NatsUrl) -> pull::Config {
    pull::Config {
        durable_name: Some(url.durable().to_owned()),
        description: Some("created by hapax".to_owned()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(url.ack_wait),
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        filter_subject: url.url.parameter("filter").unwrap_or_default().to_owned(),
        ..Default::default()
    }
}

fn check(config: &consumer::Config, url: &NatsUrl) -> Result<()> {
    if config.deliver_subject.is_some() {
        return Err(unsuited(url, "is not a pull consumer"));
    }
    if config.ack_policy != AckPolicy::Explicit {
        return Err(unsuited(url, "does not acknowledge each message explicitly"));
    }
    if config.headers_only {
        return Err(unsuited(url, "delivers only headers"));
    }
    if config.max_deliver > 0 {
        // Each delivery counts, also of a message that no worker began, because it was given back or the worker died.
        return Err(unusable(format!(
            "the consumer `{durable}` gives a message up after {} deliveries, also one that was never processed: set \
             max_deliver to -1, by `nats consumer edit {} {durable} --max-deliver=-1` for instance. The worker bounds \
             the attempts itself",
            config.max_deliver,
            url.stream(),
            durable = url.durable(),
        )));
    }
    Ok(())
}

fn warn_about_order(info: &consumer::Info, url: &NatsUrl) {
    // A request of a worker that has just ended may still wait.
    if url.order_header().is_some() && info.num_waiting > 0 {
        warn!(
            stream = url.stream(),
            durable = url.durable(),
            "another worker seems to use this durable consumer; two workers on one consumer cannot keep the order of \
             messages: run one, or give each a consumer of its own with a filter"
        );
    }
}

/// What the server says about the durable consumer now.
///
/// # Errors
/// `Unusable` if it is gone, `NotApplied` without an answer.
pub(super) async fn info(consumer: &Consumer<pull::Config>) -> Result<consumer::Info> {
    use async_nats::jetstream::context::ConsumerInfoErrorKind as Kind;
    consumer.get_info().await.map_err(|error| match error.kind() {
        Kind::NotFound => gone().caused_by(error),
        Kind::StreamNotFound => {
            unusable("the stream has been deleted: create it, then start the worker again").caused_by(error)
        }
        // JetStream may be about to start.
        Kind::InvalidName
        | Kind::Offline
        | Kind::Request
        | Kind::JetStream(_)
        | Kind::TimedOut
        | Kind::NoResponders => not_applied("JetStream does not reply").caused_by(error),
    })
}

/// The worker does not create it again by itself: with it, the server forgot which messages are finished.
pub(super) fn gone() -> Error {
    unusable(
        "the durable consumer has been deleted, and with it the server's account of what is finished. A worker that \
         starts creates it and gets every message of the stream again; what the ledger or the record store still knows \
         is not repeated. To leave messages out, create the consumer with a start sequence before",
    )
}

fn unsuited(url: &NatsUrl, what: &str) -> Error {
    unusable(format!("the consumer `{}` {what}: name another durable", url.durable()))
}

/// How long a delivery belongs to this worker.
pub(super) fn lease(config: &consumer::Config) -> Duration {
    // With a backoff the server waits for each delivery as long as the backoff says.
    config.backoff.iter().min().copied().unwrap_or(config.ack_wait)
}
