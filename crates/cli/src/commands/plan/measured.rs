//! The bytes of a record, measured in each store by `cargo xtask bench sizing`.

use std::fmt;

/// A store whose records were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PlannedStore {
    Redis,
    Postgres,
    Sqlite,
}

impl PlannedStore {
    pub(super) const ALL: [Self; 3] = [Self::Redis, Self::Postgres, Self::Sqlite];

    /// Where the records are.
    pub(super) const fn place(self) -> &'static str {
        match self {
            Self::Redis => "memory",
            Self::Postgres | Self::Sqlite => "disk",
        }
    }
}

impl fmt::Display for PlannedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        })
    }
}

/// The size of an answer, and the bytes of its record in Redis, PostgreSQL and SQLite. The answers were random, so that
/// no store could compress them. The larger of two runs.
const MEASURED: [(u64, [u64; 3]); 11] = [
    (0, [208, 430, 126]),
    (64, [252, 490, 201]),
    (256, [460, 692, 431]),
    (512, [781, 918, 726]),
    (900, [1_164, 1_315, 1_055]),
    (1_100, [1_421, 1_488, 1_396]),
    (1_900, [2_189, 3_041, 2_080]),
    (2_200, [2_701, 3_158, 4_132]),
    (4_096, [5_281, 6_038, 4_644]),
    (16_384, [20_635, 18_306, 16_938]),
    (65_536, [82_148, 69_488, 66_104]),
];

/// The bytes that a completed record with an answer of this size takes. Between two measured sizes it is as large as
/// with the larger one, if the store rounds up in steps there, and in proportion otherwise.
pub(super) fn bytes_of_record(store: PlannedStore, answer: u64) -> u64 {
    let column = |bytes: [u64; 3]| match store {
        PlannedStore::Redis => bytes[0],
        PlannedStore::Postgres => bytes[1],
        PlannedStore::Sqlite => bytes[2],
    };
    let (last, last_bytes) = MEASURED[MEASURED.len() - 1];
    let Some(above) = MEASURED.iter().position(|(size, _)| *size >= answer) else {
        // Far above the steps, bytes grow in proportion.
        return column(last_bytes) * answer / last;
    };
    let (size, bytes) = MEASURED[above];
    let Some((below, below_bytes)) = above.checked_sub(1).map(|below| MEASURED[below]) else { return column(bytes) };
    let (low, high) = (column(below_bytes), column(bytes));
    low + (high - low) * (answer - below) / (size - below)
}
