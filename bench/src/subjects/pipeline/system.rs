use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::time::sleep;

use super::arrivals::EventArrivals;
use super::load::PaymentSender;
use super::servers::PipelineServers;
use crate::stages::{self, PipelineLayers, StagePlaces, StampedTransaction};
use crate::subjects::server_process::{ServerProcess, free_address};

/// The processes of one run, and both of its ends.
pub(super) struct PipelineProcesses {
    processes: Vec<(&'static str, ServerProcess)>,
    places: StagePlaces,
    pub(super) sender: PaymentSender,
    pub(super) arrivals: EventArrivals,
}

impl PipelineProcesses {
    pub(super) async fn start(servers: &PipelineServers, layers: PipelineLayers) -> anyhow::Result<Self> {
        let places = servers.prepare().await?;
        let arrivals = EventArrivals::follow(&places).await?;
        let ingest = stage("ingest", &places)?;
        let mut entrance = ingest.address;
        let mut processes = vec![("ingest", ingest), ("worker", stage(stages::worker_of(layers), &places)?)];
        if layers.outbox {
            processes.push(("relay", relay(&places)?));
        }
        if layers.gate {
            let gateway = gateway(&format!("http://{entrance}"), &servers.redis.url())?;
            entrance = gateway.address;
            processes.insert(0, ("gateway", gateway));
        }
        Ok(Self { processes, places, sender: PaymentSender::new(entrance)?, arrivals })
    }

    /// Sends the first payments, and waits for their events.
    pub(super) async fn warm_up(&mut self, payments: u64) -> anyhow::Result<()> {
        self.sender.saturate(0..payments).await?;
        self.arrivals.wait_for(payments).await
    }

    /// The processes, then the servers.
    pub(super) fn pids(&self, servers: &PipelineServers) -> anyhow::Result<Vec<(&'static str, u32)>> {
        let own = self.processes.iter().map(|(name, process)| (*name, process.pid()));
        Ok(own.chain(servers.pids()?).collect())
    }

    /// The times of the worker, for this many payments.
    pub(super) async fn stamps(&self, payments: u64) -> anyhow::Result<HashMap<u64, StampedTransaction>> {
        let begun = Instant::now();
        loop {
            let stamps = StampedTransaction::read(&self.places.stamps)?;
            if stamps.len() as u64 >= payments {
                return Ok(stamps);
            }
            // A relay may be faster than the line in the file.
            ensure!(begun.elapsed() < Duration::from_secs(5), "the worker wrote {} of {payments} times", stamps.len());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn stage(name: &'static str, places: &StagePlaces) -> anyhow::Result<ServerProcess> {
    ServerProcess::start(name, |command, address| {
        places.give_to(command);
        command.args(["stage", name, &address.to_string()]);
        Ok(())
    })
}

fn gateway(upstream: &str, store: &str) -> anyhow::Result<ServerProcess> {
    ServerProcess::start("../hapax", |command, address| {
        quiet(command).args(["gateway", "--upstream", upstream, "--store", store, "--listen", &address.to_string()]);
        command.args(["--admin", &free_address()?.to_string()]);
        Ok(())
    })
}

fn relay(places: &StagePlaces) -> anyhow::Result<ServerProcess> {
    let StagePlaces { database, nats, subject, .. } = places;
    ServerProcess::start("../hapax", |command, address| {
        let sink = format!("{nats}/{subject}");
        quiet(command).args(["relay", "--database", database, "--sink", &sink, "--admin", &address.to_string()]);
        Ok(())
    })
}

fn quiet(command: &mut Command) -> &mut Command {
    command.env("HAPAX_LOG", "warn")
}
