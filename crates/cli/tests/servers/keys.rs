//! `hapax keys` on Redis and PostgreSQL.

use hapax::stores::{Postgres, Redis};
use hapax_testkit::servers::{
    self, PostgresServer, RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions, RedisSentinels,
    RedisServer, RedisServerOptions, Trial,
};

use crate::keys_commands::{changes_each_state_as_the_protocol_allows, drill, lists_more_than_a_page};

pub(crate) fn tests() -> Vec<Trial> {
    let states = "keys_each_state_allows_what_the_protocol_says";
    vec![
        servers::test(states, "redis", async || {
            let (server, directory) = (start().await, tempfile::tempdir().unwrap());
            let store = Redis::connect(&server.url()).unwrap();
            changes_each_state_as_the_protocol_allows(&store, &server.url(), directory.path()).await;
        }),
        servers::test(states, "postgres", async || {
            let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
            let (store, directory) = (Postgres::connect(&schema.url()).unwrap(), tempfile::tempdir().unwrap());
            changes_each_state_as_the_protocol_allows(&store, &schema.url(), directory.path()).await;
        }),
        servers::test("keys_of_more_than_a_page_are_listed", "redis", async || {
            let server = start().await;
            lists_more_than_a_page(&Redis::connect(&server.url()).unwrap(), &server.url()).await;
        }),
        servers::test("keys_with_unknown_outcomes_of_a_killed_gateway_are_resolved", "redis", async || {
            let (server, directory) = (start().await, tempfile::tempdir().unwrap());
            drill(&server.url(), directory.path()).await;
        }),
        servers::test("keys_of_more_than_a_page_are_listed_from_a_cluster", "redis", async || {
            let cluster = RedisCluster::lent(RedisClusterOptions::new(RedisKind::Redis)).await.unwrap();
            lists_more_than_a_page(&Redis::connect(&cluster.url()).unwrap(), &cluster.url()).await;
        }),
        servers::test("keys_with_unknown_outcomes_of_a_gateway_on_a_cluster_are_resolved", "redis", async || {
            let cluster = RedisCluster::lent(RedisClusterOptions::new(RedisKind::Redis)).await.unwrap();
            let directory = tempfile::tempdir().unwrap();
            drill(&cluster.url(), directory.path()).await;
        }),
        servers::test("keys_of_more_than_a_page_are_listed_behind_sentinels", "redis", async || {
            let sentinels = RedisSentinels::lent(RedisSentinelOptions::new(RedisKind::Redis)).await.unwrap();
            lists_more_than_a_page(&Redis::connect(&sentinels.url()).unwrap(), &sentinels.url()).await;
        }),
        servers::test("keys_with_unknown_outcomes_of_a_gateway_behind_sentinels_are_resolved", "redis", async || {
            let sentinels = RedisSentinels::lent(RedisSentinelOptions::new(RedisKind::Redis)).await.unwrap();
            let directory = tempfile::tempdir().unwrap();
            drill(&sentinels.url(), directory.path()).await;
        }),
    ]
}

async fn start() -> RedisServer {
    RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap()
}
