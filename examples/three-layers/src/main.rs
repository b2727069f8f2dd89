#![doc = include_str!("../README.md")]

mod accept;
mod book;
mod receipts;

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bank", folder, port] => bank(Path::new(folder), port.parse()?).await,
        ["receipts", folder] => Ok(receipts::worker(Path::new(folder))?.run(stop()?).await.map(|_| ())?),
        _ => bail!("usage: example-three-layers bank FOLDER PORT | receipts FOLDER"),
    }
}

/// Accepts, books and announces payments in one process. Each of the three can have a process of its own.
async fn bank(folder: &Path, port: u16) -> anyhow::Result<()> {
    let (worker, relay) = (book::worker(folder)?, book::relay(folder)?);
    let (gate, payments) = accept::payments(folder)?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let accepting = {
        let stop = stop()?;
        async { Ok(axum::serve(listener, payments).with_graceful_shutdown(stop).await?) }
    };
    let booking = async { Ok::<_, anyhow::Error>(worker.run(stop()?).await?) };
    let announcing = async { Ok(relay.run(stop()?).await?) };
    tokio::try_join!(accepting, booking, announcing)?;
    // Attempts of clients that hung up may still be running.
    gate.drain(Duration::from_secs(10)).await;
    Ok(())
}

/// Ends at SIGTERM.
fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move { terminate.recv().await.unwrap_or_default() })
}
