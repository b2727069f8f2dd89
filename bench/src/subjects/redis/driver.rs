use anyhow::{bail, ensure};
use hapax_core::Call;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, Value, cmd, pipe};

use super::MeasuredStep;
use super::load::Workload;
use super::server::BenchServer;
use crate::subjects::ANSWER;

/// Sends the commands of the store by the driver alone. It encodes no record and checks only the kind of each reply.
#[derive(Clone)]
pub(super) struct DriverWorkload {
    connection: MultiplexedConnection,
    operation: MeasuredStep,
    complete: String,
    renew: String,
    read: String,
}

/// The name of a record, which is all that a command of the driver needs.
pub(super) type MeasuredKey = [u8; 19];

pub(super) fn record_name(call: &Call) -> MeasuredKey {
    let mut name = *b"hx:0123456789abcdef";
    name[3..].copy_from_slice(call.record_key().as_bytes());
    name
}

const TOKEN: [u8; 8] = 1_795_222_501_926_186_u64.to_be_bytes();
const FINGERPRINT: [u8; 13] = [1; 13];
const OWNER: [u8; 16] = [7; 16];
/// The number of a call, which its script repeats.
const CALL: [u8; 8] = [9; 8];

impl DriverWorkload {
    pub(super) async fn connect(server: &BenchServer, operation: MeasuredStep) -> anyhow::Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
        let client = Client::open(server.url())?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let [complete, renew, read] = [
            include_str!("../../../../crates/stores/src/redis/complete.lua"),
            include_str!("../../../../crates/stores/src/redis/renew.lua"),
            include_str!("../../../../crates/stores/src/redis/read.lua"),
        ]
        .map(Script::new);
        for script in [&complete, &renew, &read] {
            script.prepare_invoke().load_async(&mut connection.clone()).await?;
        }
        let [complete, renew, read] = [complete, renew, read].map(|script| script.get_hash().to_owned());
        Ok(Self { connection, operation, complete, renew, read })
    }

    pub(super) fn with(&self, operation: MeasuredStep) -> Self {
        Self { operation, ..self.clone() }
    }

    /// Returns the reply to the first of the two commands.
    async fn begin(&self, name: &MeasuredKey) -> anyhow::Result<Value> {
        let mut commands = pipe();
        commands.cmd("SET").arg(name).arg(&in_progress()).arg("NX").arg("GET").arg("PX").arg("2592000000");
        commands.cmd("GETRANGE").arg(name).arg(0).arg(57);
        let replies = self.connection.clone().send_packed_commands(&commands, 0, 2).await?;
        let Ok([reply, Value::BulkString(_)]) = <[Value; 2]>::try_from(replies) else {
            bail!("the server does not show the record");
        };
        Ok(reply)
    }

    async fn complete(&self, name: &MeasuredKey) -> anyhow::Result<()> {
        let payload = FINGERPRINT;
        let mut run = cmd("EVALSHA");
        run.arg(&self.complete).arg(1).arg(name);
        run.arg(&TOKEN).arg(&payload).arg(&OWNER).arg(&completed()).arg("86400000").arg("1").arg(&CALL);
        expect(self.connection.clone().send_packed_command(&run).await?, b"DONE")
    }

    async fn renew(&self, name: &MeasuredKey) -> anyhow::Result<()> {
        let mut run = cmd("EVALSHA");
        run.arg(&self.renew).arg(1).arg(name).arg(&TOKEN).arg(&OWNER).arg(&CALL);
        expect(self.connection.clone().send_packed_command(&run).await?, b"YES")
    }

    async fn read(&self, name: &MeasuredKey) -> anyhow::Result<()> {
        let mut run = cmd("EVALSHA");
        run.arg(&self.read).arg(1).arg(name).arg(&CALL);
        expect(self.connection.clone().send_packed_command(&run).await?, b"FOUND")
    }
}

impl Workload for DriverWorkload {
    type Item = MeasuredKey;
    const NAME: &'static str = "bare";

    async fn once(&self, name: &MeasuredKey) -> anyhow::Result<()> {
        match self.operation {
            MeasuredStep::Begin => {
                ensure!(self.begin(name).await? == Value::Nil, "the server has a record of a new key");
            }
            MeasuredStep::Cycle => {
                ensure!(self.begin(name).await? == Value::Nil, "the server has a record of a new key");
                self.complete(name).await?;
            }
            MeasuredStep::Replay => {
                ensure!(
                    matches!(self.begin(name).await?, Value::BulkString(_)),
                    "the server has no record of a prepared key"
                );
            }
            MeasuredStep::Renew => self.renew(name).await?,
            MeasuredStep::Read => self.read(name).await?,
        }
        Ok(())
    }
}

fn expect(reply: Value, word: &[u8]) -> anyhow::Result<()> {
    let Value::Array(parts) = &reply else { bail!("the script replied {reply:?}") };
    let is_expected = matches!(parts.first(), Some(Value::BulkString(first)) if first == word);
    ensure!(is_expected, "the script replied {reply:?}");
    Ok(())
}

/// A record of 58 bytes, with all fields that the scripts compare.
fn in_progress() -> [u8; 58] {
    let mut record = [0; 58];
    record[..3].copy_from_slice(&[1, 1, 0]);
    record[3] = FINGERPRINT[0];
    record[4..12].copy_from_slice(&TOKEN);
    record[12..24].copy_from_slice(&FINGERPRINT[1..]);
    record[24..40].copy_from_slice(&OWNER);
    record[40..44].copy_from_slice(&30_000_u32.to_be_bytes());
    record[44..48].copy_from_slice(&2_592_000_u32.to_be_bytes());
    record
}

fn completed() -> [u8; 36 + ANSWER.len()] {
    let mut record = [0; 36 + ANSWER.len()];
    record[..2].copy_from_slice(&[1, 2]);
    record[4..12].copy_from_slice(&TOKEN);
    record[36..].copy_from_slice(ANSWER);
    record
}
