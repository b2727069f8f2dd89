//! Clients that want the answer to a request whose first attempt does not end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::harness::MeasuredBatch;
use crate::subjects::server_process::ServerProcess;

/// As many as may follow one key.
const COPIES: usize = 1000;

/// How long the copies have to arrive before the load begins.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Puts the copies beside this load of a gateway.
pub(super) fn beside_copies(mut load: MeasuredBatch, gateway: &Rc<ServerProcess>) -> MeasuredBatch {
    let (gateway, mut batch) = (Rc::clone(gateway), 0);
    Box::new(move || {
        batch += 1;
        let flood = CopyFlood::start(gateway.address, batch)?;
        let measured = load();
        drop(flood);
        measured
    })
}

/// The clients. They end when it is dropped.
struct CopyFlood(Option<Runtime>);

impl CopyFlood {
    fn start(gateway: SocketAddr, batch: u32) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        for _ in 0..COPIES {
            runtime.spawn(send_again_and_again(gateway, batch));
        }
        runtime.block_on(sleep(ARRIVAL));
        Ok(Self(Some(runtime)))
    }
}

impl Drop for CopyFlood {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends the request again a second after each answer, as `Retry-After` asks.
async fn send_again_and_again(gateway: SocketAddr, batch: u32) -> std::io::Result<()> {
    let request = format!(
        "POST /stalls HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer bench\r\nidempotency-key: {}-{batch}\r\n\
         content-length: 2\r\n\r\n{{}}",
        std::process::id()
    );
    let mut stream = TcpStream::connect(gateway).await?;
    let mut answer = [0; 4096];
    loop {
        stream.write_all(request.as_bytes()).await?;
        // A problem is shorter than this, and arrives at once.
        if stream.read(&mut answer).await? == 0 {
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
}
