//! The memory of the process.

use std::sync::Arc;

use anyhow::{Result, bail};
use hapax::journal::StorePlace;
use hapax::runtime::Runtime;
use hapax::store::{Memory, MemorySettings};

use crate::store::{NamedStore, OpenedStore};
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers =
    Offers { store: Some(Offer { form: URL, read: |url| Ok(Arc::new(read(url)?)) }), ..Offers::NONE };

const URL: &str = "memory:";

/// A store in the memory of this process.
#[derive(Debug)]
struct OwnMemory;

fn read(url: &str) -> Result<OwnMemory> {
    match url.strip_prefix(URL) {
        Some(path) if path.trim_matches('/').is_empty() => Ok(OwnMemory),
        _ => bail!("memory: takes no path"),
    }
}

impl NamedStore for OwnMemory {
    fn place(&self) -> StorePlace {
        StorePlace::new(URL)
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        Ok(OpenedStore::new(Memory::with(runtime, MemorySettings::default())))
    }

    fn ends_with_process(&self) -> bool {
        true
    }
}
