use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use hapax_core::runtime::Tokio;
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions, RespValue};
use tokio::runtime::{Builder, Runtime};

/// A Redis server of the benchmark, and a connection for its administration.
pub(super) struct BenchServer {
    server: RedisServer,
    runtime: Runtime,
}

impl BenchServer {
    /// Starts a server with these arguments. Without arguments it keeps its records in memory only.
    pub(super) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        // Unpacks the program, unless it is unpacked already or on PATH.
        Command::new("fixtures/redis/unpack.sh").stdout(Stdio::null()).status()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let options = RedisServerOptions::new(RedisKind::Redis).with_args(arguments).with_system_clock();
        let server = runtime.block_on(RedisServer::start(options))?;
        Ok(Self { server, runtime })
    }

    pub(super) fn ask<W: AsRef<[u8]>>(&self, words: &[W]) -> anyhow::Result<RespValue> {
        let reply = self.runtime.block_on(self.server.command(words))?;
        ensure!(!matches!(reply, RespValue::Error(_)), "{}", reply.text());
        Ok(reply)
    }

    /// Deletes all records.
    pub(super) fn empty(&self) -> anyhow::Result<()> {
        self.ask(&["FLUSHALL"]).map(drop)
    }

    /// A number from `INFO`.
    pub(super) fn info(&self, section: &str, field: &str) -> anyhow::Result<f64> {
        let info = self.ask(&["INFO", section])?.text();
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::to_owned);
        Ok(line.with_context(|| format!("INFO {section} has no {field}"))?.trim().parse()?)
    }

    /// A store with this many connections. It belongs to the runtime in which it is opened.
    pub(super) fn store(&self, connections: usize) -> anyhow::Result<Arc<Redis>> {
        let url = format!("{}?connections={connections}", self.server.url()).parse()?;
        Ok(Arc::new(Redis::with(&url, Arc::new(Tokio::current()))?))
    }

    pub(super) fn server(&self) -> &RedisServer {
        &self.server
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    pub(super) fn port(&self) -> String {
        self.server.address().port().to_string()
    }

    pub(super) fn process(&self) -> anyhow::Result<String> {
        Ok(self.server.pid().context("the server has ended")?.to_string())
    }
}
