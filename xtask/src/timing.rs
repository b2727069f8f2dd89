//! How long tests and steps take, and how much of the processors.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Finds out how long each test of a binary takes. A test harness prints a line when a test ends, and none when it
/// begins; but it begins its tests in the order of its list, the next one whenever one ends.
#[derive(Debug)]
pub(crate) struct TestOrder {
    next: VecDeque<String>,
    running: HashMap<String, Duration>,
    /// When the last one ended.
    last: Duration,
    took: Vec<(Duration, String)>,
}

impl TestOrder {
    /// `list` is what `--list` prints. `threads` tests run at once.
    pub(crate) fn new(list: &str, threads: usize) -> Self {
        let next = list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
        let mut order = Self { next, running: HashMap::new(), last: Duration::ZERO, took: Vec::new() };
        for _ in 0..threads {
            order.begin();
        }
        order
    }

    /// Reads a line that was printed at this time after the beginning.
    pub(crate) fn read(&mut self, line: &str, at: Duration) {
        let Some((test, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) else { return };
        let test = test.trim_end().trim_end_matches(" - should panic");
        // Some suites run more of their cases at once.
        while !self.running.contains_key(test) && self.begin() {}
        if let Some(begun) = self.running.remove(test) {
            self.took.push((at.saturating_sub(begun), test.to_owned()));
            self.last = at;
            self.begin();
        }
    }

    /// Lets the next test begin. Returns false if there is none.
    fn begin(&mut self) -> bool {
        let next = self.next.pop_front();
        let is_one = next.is_some();
        self.running.extend(next.map(|test| (test, self.last)));
        is_one
    }

    /// The names of the tests that have begun and not ended.
    pub(crate) fn running(&self) -> String {
        let mut names: Vec<&str> = self.running.keys().map(String::as_str).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Each test that has ended, with its time.
    pub(crate) fn took(self) -> Vec<(Duration, String)> {
        self.took
    }
}

/// The ten that took longest, one a line.
pub(crate) fn slowest(what: &str, mut took: Vec<(Duration, String)>) -> String {
    took.sort_by(|one, other| other.cmp(one));
    let lines: Vec<String> =
        took.iter().take(10).map(|(time, name)| format!("  {:>7.1} s  {name}\n", time.as_secs_f64())).collect();
    format!("{what}:\n{}", lines.concat())
}

/// The time that the processors spent on ended children of this process, and on theirs. None where the system does not
/// tell. A server that outlives its test counts for nobody.
pub(crate) fn processor_time() -> Option<Duration> {
    time_of_children(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// The time that the processors spent on a process and on its ended children. It is read once the process has ended,
/// before anybody waits for it. None where the system does not tell.
pub(crate) fn processor_time_of(process: u32) -> Option<Duration> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let has_ended = stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('Z'));
        if has_ended || Instant::now() > until {
            return Some(time_at(&stat, 11)? + time_at(&stat, 13)?);
        }
        thread::sleep(TICK);
    }
}

/// Linux counts in hundredths of a second for every program.
const TICK: Duration = Duration::from_millis(10);

fn time_of_children(stat: &str) -> Option<Duration> {
    time_at(stat, 13)
}

/// The sum of two fields, the first of which is this one behind the name.
fn time_at(stat: &str, field: usize) -> Option<Duration> {
    // The name of the program, in brackets, may contain blanks.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(field).map(|field| field.parse::<u32>().ok());
    Some(TICK * (fields.next()?? + fields.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_test_begins_when_an_earlier_one_ends() {
        let mut order = TestOrder::new("a: test\nb: test\nc: test\nd: test\n\n4 tests, 0 benchmarks\n", 2);
        order.read("running 4 tests\n", after(0));
        order.read("test b   ... ok\n", after(3));
        order.read("test a - should panic ... ok\n", after(5));
        order.read("test c ... FAILED\n", after(7));
        order.read("test d ... ignored, no server\n", after(9));
        let expected = [(3, "b"), (5, "a"), (4, "c"), (4, "d")];
        assert_eq!(order.took(), expected.map(|(seconds, test)| (after(seconds), test.to_owned())));
    }

    #[test]
    fn the_slowest_are_first_and_ten() {
        let took = (1..=12).map(|seconds| (after(seconds), format!("t{seconds}"))).collect();
        let shown = slowest("slowest tests", took);
        assert_eq!(shown.lines().count(), 11);
        assert!(shown.starts_with("slowest tests:\n     12.0 s  t12\n") && !shown.contains("t2\n"), "{shown}");
    }

    #[test]
    fn the_time_of_children_is_read_behind_a_name_with_blanks() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 11 12 150 50 20 0 1 0 5";
        assert_eq!(time_of_children(stat), Some(after(2)));
    }
}
