//! Real servers for tests. Each has its own port and folder, and none outlives the test process.
//!
//! A test that needs one belongs in a test binary with `harness = false`: only there can a test ignore itself when it
//! runs:
//!
//! ```no_run
//! use hapax_testkit::servers::{self, RedisKind, RedisServerOptions, RedisServer};
//!
//! async fn a_key_expires_after_an_hour(kind: RedisKind) {
//!     let server = RedisServer::start(RedisServerOptions::new(kind)).await.unwrap();
//!     server.command(&["SET", "key", "value", "EX", "3600"]).await.unwrap();
//!     server.step_clock(hapax_testkit::ClockStep::Forward(std::time::Duration::from_secs(3601))).unwrap();
//!     assert_eq!(server.command(&["GET", "key"]).await.unwrap(), servers::RespValue::Nil);
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let name = "a_key_expires_after_an_hour";
//!     let test = |kind: RedisKind| servers::test(name, kind.name(), move || a_key_expires_after_an_hour(kind));
//!     servers::main(RedisKind::ALL.map(test))
//! }
//! ```

mod availability;
mod broker;
mod dynamodb;
mod elasticmq;
mod minio;
#[cfg(feature = "postgres")]
mod pgbouncer;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod pubsub;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redis_tls;
mod resp;
mod skew;
mod spanner;
mod starter;

pub(crate) use availability::end_shared;
pub use availability::{MissingService, main, required, test};
pub use broker::{
    BrokerKind, BrokerServer, Kafka, KafkaServer, Nats, NatsServer, RabbitMq, RabbitMq3, RabbitMq3Server,
    RabbitMqServer,
};
pub use dynamodb::{DynamoDbServer, DynamoDbTable};
pub use elasticmq::{ElasticMq, ElasticMqServer};
pub use libtest_mimic::Trial;
pub use minio::{Minio, MinioServer};
#[cfg(feature = "postgres")]
pub use pgbouncer::PgBouncer;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresRelease, PostgresSchema, PostgresServer, PostgresServerOptions};
pub use pubsub::{PsTest, PsTestServer, PubSub, PubSubServer};
pub use redis::{RedisKind, RedisServer, RedisServerOptions};
pub use redis_cluster::{LentRedisCluster, RedisCluster, RedisClusterOptions};
pub use redis_sentinel::{LentRedisSentinels, RedisSentinelOptions, RedisSentinels};
pub use redis_tls::RedisTls;
pub use resp::RespValue;
pub use spanner::{SpannerEmulator, SpannerServer};
