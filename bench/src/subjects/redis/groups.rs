//! The store on several servers: a cluster of three masters, and a master whose replica confirms each write.

use std::cell::OnceCell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hapax_core::runtime::Tokio;
use hapax_stores::Redis;
use hapax_testkit::servers::{
    RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions, RedisSentinels, RedisServer, RespValue,
};
use tokio::runtime::{Builder, Runtime};

use super::load::{RateBasis, measured_on, threads};
use super::server::BenchServer;
use super::store::{StoreTask, StoreWorkload};
use super::{MeasuredStep, OPERATIONS};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::FreshCalls;

/// Servers that are used together, and a runtime for their administration.
struct BenchGroup<G> {
    group: G,
    runtime: Runtime,
}

impl<G> BenchGroup<G> {
    fn start(start: impl Future<Output = std::io::Result<G>>) -> anyhow::Result<Self> {
        Command::new("fixtures/redis/unpack.sh").stdout(Stdio::null()).status()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let group = runtime.block_on(start)?;
        Ok(Self { group, runtime })
    }

    fn ask<W: AsRef<[u8]>>(&self, server: &RedisServer, words: &[W]) -> anyhow::Result<()> {
        let reply = self.runtime.block_on(server.command(words))?;
        ensure!(!matches!(reply, RespValue::Error(_)), "{}", reply.text());
        Ok(())
    }
}

/// Begins and completes new keys at this URL.
fn cycles(url: &str, servers: &[&RedisServer], calls: &mut FreshCalls) -> anyhow::Result<BatchResult> {
    let runtime = threads(1)?;
    let url = url.parse()?;
    let store = runtime.block_on(async { Redis::with(&url, Arc::new(Tokio::current())) })?;
    let processes: Vec<String> = servers
        .iter()
        .map(|server| Ok(server.pid().context("a server has ended")?.to_string()))
        .collect::<anyhow::Result<_>>()?;
    let tasks = calls.take(OPERATIONS).into_iter().map(StoreTask::new).collect();
    let workload = StoreWorkload { store: Arc::new(store), operation: MeasuredStep::Cycle };
    measured_on(&processes, &runtime, RateBasis::SecondOfAllCpu, (workload, tasks))
}

/// Three masters on the cores on which one server is measured as well.
pub(super) fn cluster(server: &Rc<BenchServer>) -> Subject {
    let started = OnceCell::<BenchGroup<RedisCluster>>::new();
    let mut calls = FreshCalls::new();
    let run = move || {
        if started.get().is_none() {
            let options = RedisClusterOptions::new(RedisKind::Redis).with_system_clock();
            let cluster = BenchGroup::start(RedisCluster::start(options))?;
            // The one server has no replica either.
            cluster.group.replicas().iter().for_each(RedisServer::kill);
            let _ = started.set(cluster);
        }
        let cluster = started.get().context("the cluster is not started")?;
        for master in cluster.group.masters() {
            cluster.ask(master, &["FLUSHALL"])?;
        }
        let masters: Vec<_> = cluster.group.masters().iter().collect();
        cycles(&cluster.group.url(), &masters, &mut calls)
    };
    Subject {
        name: "Redis, a cluster of three masters",
        what: "begin + complete of a new key, 256 in flight, for each second that this process and the servers \
               spend on a core",
        run: Box::new(run),
        limit: Some(Limit { what: "the same on one server", run: on_one(server), at_least: Some(0.8) }),
    }
}

fn on_one(server: &Rc<BenchServer>) -> MeasuredBatch {
    let server = Rc::clone(server);
    let mut calls = FreshCalls::new();
    Box::new(move || {
        server.empty()?;
        cycles(&server.url(), &[server.server()], &mut calls)
    })
}

/// A master whose replica confirms each write, against the same servers without that.
pub(super) fn confirmed() -> Subject {
    let started = Rc::new(OnceCell::<BenchGroup<RedisSentinels>>::new());
    let run = |parameters: &'static str| {
        let (started, mut calls) = (Rc::clone(&started), FreshCalls::new());
        let run = move || {
            if started.get().is_none() {
                let options = RedisSentinelOptions::new(RedisKind::Redis).with_system_clock();
                let _ = started.set(BenchGroup::start(RedisSentinels::start(options))?);
            }
            let pair = started.get().context("the servers are not started")?;
            let [master, replica] = pair.group.servers() else { anyhow::bail!("there are not two servers") };
            pair.ask(master, &["FLUSHALL"])?;
            cycles(&format!("{}{parameters}", master.url()), &[master, replica], &mut calls)
        };
        Box::new(run) as MeasuredBatch
    };
    Subject {
        name: "Redis, wait=1",
        what: "begin + complete of a new key, 256 in flight, each write confirmed by a replica, for each second that \
               this process and the servers spend on a core",
        run: run("?wait=1:1000"),
        limit: Some(Limit { what: "the same without waiting", run: run(""), at_least: None }),
    }
}
