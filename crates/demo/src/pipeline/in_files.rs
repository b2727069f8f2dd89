//! A run in SQLite files: the services have a file, the consumers have one, and each has a queue.

mod books;
mod consumer;
mod database;
mod intake;
mod worker;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use hapax::broker::Process;
use hapax_systems::SinkUrl;

use self::books::FileBooks;
use self::intake::FileIntake;
use super::books::ShopBooks;
use super::ingest::Intake;
use super::messages::{CHARGES, RECEIPTS};
use super::places::Places;
use super::service::DemoServiceArgs;
use crate::{OmittedLayer, runtime};

/// Creates the files of a run.
pub(super) fn create(store: Option<String>, folder: &Path) -> Result<(Places, Arc<dyn ShopBooks>)> {
    let file = |name: &str| format!("sqlite://{}", folder.join(name).display());
    let (shop, post) = (file("shop.db"), file("post.db"));
    let (charges, receipts) = (format!("{shop}?queue={CHARGES}"), format!("{post}?queue={RECEIPTS}"));
    let places = Places {
        store: store.unwrap_or_else(|| file("gateway.db")),
        charges: String::new(),
        to_workers: [charges.clone(), charges],
        to_consumers: [receipts.clone(), receipts.clone()],
        receipts,
        shop,
        post,
    };
    let books = FileBooks::create(&folder.join("shop.db"), &folder.join("post.db"))?;
    Ok((places, Arc::new(books)))
}

/// What the ingest service does.
pub(super) fn intake(args: &DemoServiceArgs, file: &Path) -> Result<Box<dyn Intake>> {
    Ok(Box::new(FileIntake::open(file, args.seed)?))
}

/// What the workers do with messages.
pub(super) async fn charge_messages(args: &DemoServiceArgs, file: &Path) -> Result<Arc<dyn Process>> {
    match args.without {
        Some(OmittedLayer::Ledger) => worker::without_ledger(file),
        Some(OmittedLayer::Outbox) => {
            worker::without_outbox(file, args.sink.parse::<SinkUrl>()?.open(runtime()).await?)
        }
        None | Some(OmittedLayer::Gate) => worker::charge_once(file),
    }
}

/// What the consumers do with events.
pub(super) fn send_receipts(file: &Path) -> Result<Arc<dyn Process>> {
    consumer::send_once(file)
}
