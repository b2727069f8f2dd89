//! Metrics of the process, under the usual names of Prometheus. The crates that collect them bring a generator of C
//! bindings and the bindings of Windows; these few lines read the same values.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Unit, describe_gauge, gauge};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// A gauge, because the counters of `metrics` have no fractions.
const CPU_SECONDS: &str = "process_cpu_seconds_total";
const RESIDENT_BYTES: &str = "process_resident_memory_bytes";
const OPEN_FILES: &str = "process_open_fds";
const MAX_FILES: &str = "process_max_fds";
const START_TIME: &str = "process_start_time_seconds";

/// Describes the metrics, and sets those that stay the same.
pub(super) fn describe() {
    describe_gauge!(CPU_SECONDS, Unit::Seconds, "CPU time of the process, user and system");
    describe_gauge!(RESIDENT_BYTES, Unit::Bytes, "Resident memory of the process");
    describe_gauge!(OPEN_FILES, "Open files of the process");
    describe_gauge!(MAX_FILES, "Limit of open files of the process");
    describe_gauge!(START_TIME, Unit::Seconds, "Start of the process, in unix seconds");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(START_TIME).set(now.as_secs_f64());
}

/// Sets the metrics. On a system without /proc, memory and open files are missing.
#[expect(clippy::cast_precision_loss, reason = "the values are far below 2^52")]
pub(super) fn collect() {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    gauge!(CPU_SECONDS).set(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    if let Some(bytes) = resident_bytes() {
        gauge!(RESIDENT_BYTES).set(bytes as f64);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        gauge!(OPEN_FILES).set(open.count().saturating_sub(1) as f64);
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        gauge!(MAX_FILES).set(limit as f64);
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kib.parse::<u64>().ok()? * 1024)
}
