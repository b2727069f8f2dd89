//! The stores that the tests put a bucket beside, and the services of the buckets.

use std::any::Any;
use std::sync::Arc;

use hapax_core::Store;
use hapax_core::store::{Inspect, Memory};
use hapax_stores::{Postgres, Redis, Sqlite};
use hapax_testkit::BucketService;
use hapax_testkit::servers::{PostgresServer, RedisKind, RedisServer, RedisServerOptions};

use crate::runtime;

#[derive(Clone, Copy)]
pub(crate) enum InsideKind {
    Memory,
    Sqlite,
    Redis,
    Postgres,
}

/// A store, and the service of the bucket beside it.
#[derive(Clone, Copy)]
pub(crate) struct FarKind {
    pub(crate) inside: InsideKind,
    pub(crate) service: BucketService,
}

impl FarKind {
    pub(crate) const ALL: [Self; 6] = [
        Self::of_s3(InsideKind::Memory),
        Self::of_s3(InsideKind::Sqlite),
        Self::of_s3(InsideKind::Redis),
        Self::of_s3(InsideKind::Postgres),
        Self { inside: InsideKind::Memory, service: BucketService::Google },
        Self { inside: InsideKind::Sqlite, service: BucketService::Google },
    ];

    const fn of_s3(inside: InsideKind) -> Self {
        Self { inside, service: BucketService::S3 }
    }

    pub(crate) fn name(self) -> String {
        match self.service {
            BucketService::S3 => self.inside.name().to_owned(),
            BucketService::Google => format!("{}_google", self.inside.name()),
        }
    }
}

impl InsideKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => RedisKind::Redis.name(),
            Self::Postgres => "postgres",
        }
    }

    /// The server that such a store needs.
    pub(crate) fn service(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Sqlite => None,
            Self::Redis | Self::Postgres => Some(self.name()),
        }
    }
}

pub(crate) struct Inside {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inspect: Arc<dyn Inspect>,
    /// The file, server or schema lives as long.
    _place: Box<dyn Any>,
}

impl Inside {
    pub(crate) async fn new(kind: InsideKind) -> Self {
        match kind {
            InsideKind::Memory => Self::of(Arc::new(Memory::new()), ()),
            InsideKind::Sqlite => {
                let directory = tempfile::tempdir().unwrap();
                Self::of(Arc::new(Sqlite::open(directory.path().join("hapax.db")).unwrap()), directory)
            }
            InsideKind::Redis => {
                let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap();
                Self::of(Arc::new(Redis::with(&server.url().parse().unwrap(), runtime()).unwrap()), server)
            }
            InsideKind::Postgres => {
                let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
                Self::of(Arc::new(Postgres::with(&schema.url().parse().unwrap(), runtime()).unwrap()), schema)
            }
        }
    }

    fn of<S: Store + Inspect + 'static>(store: Arc<S>, place: impl Any) -> Self {
        Self { store: Arc::clone(&store) as _, inspect: store, _place: Box::new(place) }
    }
}
