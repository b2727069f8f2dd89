//! `hapax plan`: the memory and disk that the records of layer 1 will need.

mod measured;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use super::number_format::grouped;
use measured::{PlannedStore, bytes_of_record};

/// The arguments of `hapax plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PlanArgs {
    /// New keys a second, on the busiest day; copies need no room
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: u64,

    /// How long answers are kept: --retention of the gateway
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = humantime::parse_duration)]
    retention: Duration,

    /// Mean size of an answer in bytes, with a few headers
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    body: u64,

    /// Print only this store
    #[arg(long, value_name = "STORE")]
    store: Option<PlannedStore>,
}

const AFTER_HELP: &str = "\
The bytes of a record were measured in each store, with answers that cannot be compressed. A record is removed up to a
minute after its retention has ended. Records whose outcome is unknown stay for 30 days; they are few.";

/// An answer of this size is worth moving.
const LARGE: u64 = 4_096;
/// The size of a pointer to an answer in a bucket, with a usual prefix.
const POINTER: u64 = 256;

pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    print!("{}", plan(args));
    ExitCode::SUCCESS
}

fn plan(args: &PlanArgs) -> String {
    let records = args.rate.saturating_mul(args.retention.as_secs());
    let mut text = format!(
        "{} records: {} new keys a second, kept for {}\n\n{:<10}{:>16}{:>14}\n",
        grouped(records),
        grouped(args.rate),
        humantime::format_duration(args.retention),
        "STORE",
        "BYTES A RECORD",
        "ALL RECORDS"
    );
    let stores: Vec<PlannedStore> = args.store.map_or(PlannedStore::ALL.to_vec(), |store| vec![store]);
    for store in &stores {
        let bytes = bytes_of_record(*store, args.body);
        let all = in_units(records.saturating_mul(bytes));
        let _ = writeln!(text, "{store:<10}{:>16}{all:>14} of {}", grouped(bytes), store.place());
    }
    text.push('\n');
    for store in &stores {
        let _ = writeln!(text, "{}", advice(*store));
    }
    if args.body >= LARGE {
        text += &instead_of_bodies(args, records, &stores);
    }
    text
}

/// What a server needs beside the records.
const fn advice(store: PlannedStore) -> &'static str {
    match store {
        PlannedStore::Redis => {
            "redis: set maxmemory to 1.25 times as much, on each replica too. The append-only file takes as much \
             disk\n       again, and twice that while it is rewritten. A cluster shares the memory among its masters."
        }
        PlannedStore::Postgres => {
            "postgres: the bytes include the index and the space of row versions that vacuum has not removed yet. The\n\
             \x20         write-ahead log is extra."
        }
        PlannedStore::Sqlite => {
            "sqlite: the file does not shrink. Its write-ahead log takes some MiB more. One host only."
        }
    }
}

/// The same with the answers in a bucket.
fn instead_of_bodies(args: &PlanArgs, records: u64, stores: &[PlannedStore]) -> String {
    let mut text = format!(
        "\nWith --answers s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, and --inline 4KiB, the gateway keeps these\n\
         answers in a bucket, and in their records pointers (about {POINTER} bytes):\n"
    );
    for store in stores {
        let (now, then) = (bytes_of_record(*store, args.body), bytes_of_record(*store, POINTER));
        let less = 100 - 100 * then / now;
        let _ = writeln!(text, "{store:<10}{:>30} of {}, {less} % less", in_units(records * then), store.place());
    }
    text
}

/// Binary units with three digits: 62.7 GiB.
fn in_units(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1_000.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}
