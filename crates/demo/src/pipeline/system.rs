//! All processes of the pipeline, and where each of them keeps its data.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::timeout;

use super::Scenario;
use super::member::{MemberSetup, PipelineProcess, Suffered};
use super::places::{EACH, Places};
use crate::OmittedLayer;
use crate::process::free_addresses;
use crate::random::fresh_seed;
use crate::readiness::{Readiness, ReadinessClient};

/// The running processes.
#[derive(Debug)]
pub(super) struct System {
    pub(super) members: Vec<PipelineProcess>,
    entrances: Vec<SocketAddr>,
    notes: Notes,
}

/// What is left of the processes after their end.
#[derive(Debug, Default, Clone)]
pub(super) struct Remains {
    /// Each process by its name, with its faults.
    pub(super) suffered: Vec<(String, Suffered)>,
    pub(super) notes: Notes,
}

/// The files in which the processes of a role write what they caught.
#[derive(Debug, Default, Clone)]
pub(super) struct Notes {
    pub(super) workers: Vec<PathBuf>,
    pub(super) consumers: Vec<PathBuf>,
}

/// Variables of the processes. Every user of this host can read arguments, and URLs may contain passwords.
const DATABASE: &str = "HAPAX_DATABASE";
const SOURCE: &str = "HAPAX_SOURCE";
const SINK: &str = "HAPAX_SINK";

impl System {
    /// Starts the processes that this scenario has.
    pub(super) async fn start(scenario: &Scenario, places: Places, folder: &Path) -> Result<Self> {
        let plan = SystemPlan::new(scenario, places, folder)?;
        let mut members = Vec::new();
        for setup in plan.setups()? {
            members.push(PipelineProcess::start(setup).await?);
        }
        // A file of the run is created now, which may take a moment. A store that the user names should already work.
        if scenario.store.is_some() && scenario.has(OmittedLayer::Gate) {
            wait_until_usable(&plan.admins[..EACH]).await?;
        }
        let notes = |role| (0..EACH).map(|number| plan.notes(role, number)).collect();
        let notes = Notes { workers: notes("worker"), consumers: notes("consumer") };
        Ok(Self { members, entrances: plan.entrances(), notes })
    }

    /// Where the clients connect.
    pub(super) fn entrances(&self) -> Vec<SocketAddr> {
        self.entrances.clone()
    }

    /// Kills every process.
    pub(super) async fn end(mut self) -> Result<Remains> {
        for member in &mut self.members {
            member.kill().await?;
        }
        let suffered = self.members.iter().map(|member| (member.setup.name.clone(), member.suffered)).collect();
        Ok(Remains { suffered, notes: self.notes })
    }
}

/// Waits until all gateways with these admin addresses can use their store. Refuses a store that one cannot use.
async fn wait_until_usable(gateways: &[SocketAddr]) -> Result<()> {
    let client = ReadinessClient::new();
    for gateway in gateways {
        match timeout(READY_TIMEOUT, client.ask(*gateway))
            .await
            .context("a gateway does not say whether it is ready")??
        {
            Readiness::Ready => {}
            Readiness::NotReady(why) => bail!("the gateways cannot use the store: {why}"),
        }
    }
    Ok(())
}

const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The addresses and files of the processes.
struct SystemPlan<'s> {
    scenario: &'s Scenario,
    places: Places,
    folder: &'s Path,
    ingest: SocketAddr,
    gateways: [SocketAddr; EACH],
    admins: [SocketAddr; 2 * EACH],
    namespace: String,
}

impl<'s> SystemPlan<'s> {
    fn new(scenario: &'s Scenario, places: Places, folder: &'s Path) -> Result<Self> {
        let addresses = free_addresses::<{ 1 + 3 * EACH }>()?;
        let [ingest, ref others @ ..] = addresses;
        let (gateways, admins) = others.split_at(EACH);
        // A store that outlives the run may still have records of another run.
        let namespace = format!("demo-{:016x}", fresh_seed());
        let (gateways, admins) = (gateways.try_into()?, admins.try_into()?);
        Ok(Self { scenario, places, folder, ingest, gateways, admins, namespace })
    }

    fn entrances(&self) -> Vec<SocketAddr> {
        if self.scenario.has(OmittedLayer::Gate) { self.gateways.to_vec() } else { vec![self.ingest] }
    }

    fn setups(&self) -> Result<Vec<MemberSetup>> {
        let mut setups = vec![self.ingest()];
        for number in 0..EACH {
            if self.scenario.has(OmittedLayer::Gate) {
                setups.push(self.gateway(number)?);
            }
            setups.push(self.worker(number));
            if self.scenario.has(OmittedLayer::Outbox) {
                setups.push(self.relay(number));
            }
            setups.push(self.consumer(number));
        }
        Ok(setups)
    }

    fn ingest(&self) -> MemberSetup {
        let mut arguments = self.service("ingest");
        arguments.extend(["--listen".into(), self.ingest.to_string()]);
        let (database, sink) = (self.places.shop.clone(), self.places.charges.clone());
        let setup = self.setup("service", None, arguments).at(self.ingest);
        MemberSetup { variables: vec![(DATABASE, database), (SINK, sink)], ..setup }
    }

    fn gateway(&self, number: usize) -> Result<MemberSetup> {
        let address = self.gateways.get(number).context("there are more gateways than addresses")?;
        let spill = self.path(&format!("spill-{number}"));
        let arguments = [
            "gateway",
            "--upstream",
            &format!("http://{}", self.ingest),
            "--listen",
            &address.to_string(),
            "--admin",
            &self.admins[number].to_string(),
            "--namespace",
            &self.namespace,
            "--data-dir",
            &spill.to_string_lossy(),
            "--tenant",
            "authorization",
            "--lease",
            "1s",
            // A copy that this lets through meets the ledger.
            "--on-lapse",
            "retry",
            // The clients of the demo send a copy again that gets 409.
            "--wait",
            "0s",
        ];
        let setup = self.setup("gateway", Some(number), arguments.map(str::to_owned).to_vec()).at(*address);
        Ok(MemberSetup { variables: vec![("HAPAX_STORE", self.places.store.clone())], ..setup })
    }

    fn worker(&self, number: usize) -> MemberSetup {
        let (database, sink) = (self.places.shop.clone(), self.places.receipts.clone());
        let variables = vec![(DATABASE, database), (SOURCE, self.places.to_workers[number].clone()), (SINK, sink)];
        MemberSetup { variables, ..self.noting("worker", number) }
    }

    fn relay(&self, number: usize) -> MemberSetup {
        let (database, sink) = (self.places.shop.clone(), self.places.receipts.clone());
        let admin = self.admins[EACH + number];
        let arguments = ["relay", "--lease", "1s", "--admin", &admin.to_string()].map(str::to_owned);
        let setup = self.setup("relay", Some(number), arguments.to_vec()).at(admin);
        MemberSetup { variables: vec![(DATABASE, database), (SINK, sink)], ..setup }
    }

    fn consumer(&self, number: usize) -> MemberSetup {
        let (database, source) = (self.places.post.clone(), self.places.to_consumers[number].clone());
        MemberSetup { variables: vec![(DATABASE, database), (SOURCE, source)], ..self.noting("consumer", number) }
    }

    /// A service that writes down what it catches.
    fn noting(&self, role: &str, number: usize) -> MemberSetup {
        let mut arguments = self.service(role);
        arguments.extend(["--notes".into(), self.notes(role, number).to_string_lossy().into_owned()]);
        self.setup(role, Some(number), arguments)
    }

    fn service(&self, role: &str) -> Vec<String> {
        let mut arguments = vec!["demo-service".to_owned(), role.to_owned()];
        arguments.extend(["--seed".to_owned(), self.scenario.seed.to_string()]);
        if let Some(layer) = self.scenario.without {
            arguments.extend(["--without".to_owned(), layer.name().to_owned()]);
        }
        arguments
    }

    fn setup(&self, role: &str, number: Option<usize>, arguments: Vec<String>) -> MemberSetup {
        let name = number.map_or(role.to_owned(), |number| format!("{role} {}", number + 1));
        let log = self.path(&format!("{}.log", name.replace(' ', "-")));
        // As a service manager does where a server is down for a while.
        let is_restarted = self.scenario.servers.is_some();
        MemberSetup { name, log, arguments, variables: Vec::new(), address: None, is_restarted }
    }

    fn notes(&self, role: &str, number: usize) -> PathBuf {
        self.path(&format!("caught-by-{role}-{}.txt", number + 1))
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }
}

impl MemberSetup {
    fn at(self, address: SocketAddr) -> Self {
        Self { address: Some(address), ..self }
    }
}
