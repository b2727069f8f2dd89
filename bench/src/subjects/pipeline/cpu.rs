use std::collections::HashMap;
use std::fs;

use crate::harness::own_seconds_of_cpu;

/// The CPU time of the processes of a pipeline, each with its child processes, in seconds.
#[derive(Debug)]
pub(super) struct CpuTimes(Vec<(&'static str, f64)>);

/// The name of this process, which has both ends of the pipeline.
const CLIENTS: &str = "clients and consumer";

impl CpuTimes {
    /// Reads `/proc/PID/stat` of these processes and of their children. A server such as PostgreSQL has a process for
    /// each connection.
    pub(super) fn of(processes: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let all = all_processes()?;
        let mut times: Vec<_> = processes.iter().map(|(name, pid)| (*name, all_below(&all, *pid))).collect();
        times.push((CLIENTS, own_seconds_of_cpu()?));
        Ok(Self(times))
    }

    /// What was used after an earlier look at the same processes.
    pub(super) fn since(self, earlier: &Self) -> Self {
        Self(self.0.into_iter().zip(&earlier.0).map(|((name, now), (_, before))| (name, now - before)).collect())
    }

    /// The microseconds of each process for a payment, and its share. The clients are in no sum.
    pub(super) fn note(&self, payments: u64) -> String {
        let of_clients = |name: &str| name == CLIENTS;
        let sum: f64 = self.0.iter().filter(|(name, _)| !of_clients(name)).map(|(_, seconds)| seconds).sum();
        let each = |seconds: f64| seconds * 1e6 / payments as f64;
        let parts = self.0.iter().map(|(name, seconds)| {
            let share = if of_clients(name) { String::new() } else { format!(" ({:.0} %)", seconds * 100.0 / sum) };
            format!("{name} {:.0}{share}", each(*seconds))
        });
        format!("us of CPU a payment: {:.0} = {}", each(sum), parts.collect::<Vec<_>>().join(", "))
    }
}

/// A process: its parent, and its CPU time with that of children that have ended, in ticks of 10 ms.
struct ProcessTimes {
    parent: u32,
    ticks: u64,
}

fn all_processes() -> anyhow::Result<HashMap<u32, ProcessTimes>> {
    let mut all = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end in between.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        all.extend(process_times(&stat).map(|times| (pid, times)));
    }
    Ok(all)
}

fn process_times(stat: &str) -> Option<ProcessTimes> {
    // The name in parentheses may contain spaces.
    let words: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = words.get(11..15)?.iter().map(|word| word.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ProcessTimes { parent: words.get(1)?.parse().ok()?, ticks })
}

/// The seconds of a process and of all that it has started.
fn all_below(all: &HashMap<u32, ProcessTimes>, pid: u32) -> f64 {
    let own = all.get(&pid).map_or(0.0, |process| process.ticks as f64 / 100.0);
    let children = all.iter().filter(|(_, process)| process.parent == pid);
    own + children.map(|(child, _)| all_below(all, *child)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_has_that_of_its_children() {
        let stat = |parent, user| format!("7 (a name) with) S {parent} 1 1 0 -1 0 0 0 0 0 {user} 20 3 4 20 0");
        let process = |parent, user| process_times(&stat(parent, user)).unwrap();
        let all = HashMap::from([(1, process(0, 100)), (2, process(1, 0)), (3, process(2, 0)), (4, process(9, 500))]);
        let seconds = all_below(&all, 1);
        assert!((seconds - (1.27 + 0.27 + 0.27)).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn shares_leave_the_clients_out() {
        let times = CpuTimes(vec![("gateway", 0.3), ("Kafka", 0.1), (CLIENTS, 5.0)]);
        let note = times.note(1000);
        assert_eq!(note, "us of CPU a payment: 400 = gateway 300 (75 %), Kafka 100 (25 %), clients and consumer 5000");
    }
}
