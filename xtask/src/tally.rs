//! Counts the tests in the output of `cargo test`.
//!
//! Counts come from the `test result:` lines, names and reasons from the `test ...` lines. libtest writes
//! `ignored, reason`; libtest-mimic pads the name and writes `ignored (reason)`.

/// The summary shows so many lines of the output of a failed test.
const SHOWN: usize = 20;

/// The counts of all test binaries and doctests together.
#[derive(Debug, Default)]
pub(crate) struct TestTally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Suites that printed `running 3 tests`.
    begun: u64,
    /// Suites that printed a `test result:`.
    ended: u64,
    failures: Vec<FailedTest>,
    /// The failed test whose output is being read.
    described: Option<usize>,
    skips: Vec<IgnoredTest>,
}

#[derive(Debug)]
struct FailedTest {
    test: String,
    /// The beginning of its output.
    output: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct IgnoredTest {
    test: String,
    reason: String,
}

impl TestTally {
    /// Counts the tests in these lines.
    pub(crate) fn of<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut tally = Self::default();
        for line in lines {
            tally.read(&without_colour(line));
        }
        tally
    }

    /// Returns an error if a test failed, cargo failed, or no test ran.
    pub(crate) fn verdict(&self, ended_well: bool) -> Result<(), String> {
        if self.failed > 0 {
            Err(format!("{} failed", plural(self.failed, "test")))
        } else if self.ended < self.begun {
            let lost = plural(self.begun - self.ended, "suite");
            Err(format!("{lost} began and printed no `test result`"))
        } else if !ended_well {
            Err("cargo test ended with an error".to_owned())
        } else if self.ended == 0 {
            Err("there is no `test result` line: nothing was tested".to_owned())
        } else if self.passed == 0 {
            Err("no test passed: nothing was tested".to_owned())
        } else {
            Ok(())
        }
    }

    /// One line for each ignored test, with the reason, and then the failed tests.
    pub(crate) fn details(&self) -> String {
        let mut details = String::new();
        for IgnoredTest { test, reason } in &self.skips {
            details += &format!("ignored: {test}: {reason}\n");
        }
        details + &self.failures()
    }

    /// One line for each failed test, and the beginning of its output.
    fn failures(&self) -> String {
        let show = |FailedTest { test, output }: &FailedTest| {
            let output: String = output.iter().map(|line| format!("    {line}\n")).collect();
            format!("failed: {test}\n{output}")
        };
        self.failures.iter().map(show).collect()
    }

    /// The end of the output: a line for each reason, then the failed tests, and the counts.
    pub(crate) fn summary(&self) -> String {
        let Self { passed, failed, ignored, .. } = self;
        let ignored_for = |(count, reason)| format!("{count} ignored: {reason}\n");
        let reasons: String = self.reasons().into_iter().map(ignored_for).collect();
        // Where only the end is kept, it names the failures.
        format!("{reasons}{}tests: {passed} passed, {failed} failed, {ignored} ignored", self.failures())
    }

    /// Each reason with its count, most frequent first. The counts add up to `ignored`.
    fn reasons(&self) -> Vec<(u64, &str)> {
        let mut reasons: Vec<(u64, &str)> = Vec::new();
        for IgnoredTest { reason, .. } in &self.skips {
            match reasons.iter_mut().find(|(_, known)| known == reason) {
                Some((count, _)) => *count += 1,
                None => reasons.push((1, reason)),
            }
        }
        // Output of a test can split the line that reports it.
        let unread = self.ignored.saturating_sub(self.skips.len() as u64);
        if unread > 0 {
            reasons.push((unread, "whose line could not be read"));
        }
        reasons.sort_by_key(|&(count, _)| std::cmp::Reverse(count));
        reasons
    }

    fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.described = None;
            self.ended += 1;
            self.passed += count(result, "passed");
            self.failed += count(result, "failed");
            self.ignored += count(result, "ignored");
        } else if is_opening(line) {
            self.begun += 1;
        } else if let Some((test, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.read_outcome(test.trim_end(), outcome);
        } else {
            self.read_output(line);
        }
    }

    /// Keeps the output of failed tests, which a harness prints behind `---- name stdout ----` or `---- name ----`.
    fn read_output(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            let name = name.strip_suffix(" stdout").unwrap_or(name);
            self.described = self.failures.iter().rposition(|failure| failure.test == name);
        } else if line == "failures:" {
            self.described = None;
        } else if let Some(failure) = self.described.and_then(|described| self.failures.get_mut(described))
            && failure.output.len() < SHOWN
            && !line.trim().is_empty()
        {
            failure.output.push(line.to_owned());
        }
    }

    fn read_outcome(&mut self, test: &str, outcome: &str) {
        if outcome.starts_with("FAILED") {
            self.failures.push(FailedTest { test: test.to_owned(), output: Vec::new() });
        } else if let Some(rest) = outcome.strip_prefix("ignored") {
            self.skips.push(IgnoredTest { test: test.to_owned(), reason: reason(rest) });
        }
    }
}

/// `running 3 tests`
fn is_opening(line: &str) -> bool {
    line.strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")))
        .is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The number before `word` in `ok. 5 passed; 0 failed; 1 ignored; ...`.
fn count(result: &str, word: &str) -> u64 {
    result
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim_end().parse().ok())
        .unwrap_or(0)
}

/// The reason after `ignored`: `, reason` from libtest, ` (reason)` from libtest-mimic, nothing from either.
fn reason(rest: &str) -> String {
    let rest = rest.trim();
    let bracketed = || rest.strip_prefix('(')?.strip_suffix(')');
    let reason = rest.strip_prefix(", ").or_else(bracketed).unwrap_or(rest);
    let reason = if reason.is_empty() { "no reason given" } else { reason };
    reason.to_owned()
}

/// Removes escape sequences: the environment may force colour on.
fn without_colour(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain += piece.split_once(|end: char| end.is_ascii_alphabetic()).map_or("", |(_, text)| text);
    }
    plain
}

fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str = "
running 4 tests
test key::tests::an_empty_key_is_refused ... ok
test store::tests::damaged ... ignored, sqlite: a damaged page cannot be made by SQL
test store::tests::slow ... ignored
test store::tests::too_long - should panic ... ok

test result: ok. 2 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    const MIMIC: &str = "
running 3 tests
test [memory] claim::second_is_refused  ... ok
test [sqlite] record::damaged           ... ignored (sqlite: a damaged page cannot be made by SQL)
test [memory] claim::survives_a_restart ... ignored

test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    const FAILING: &str = "
running 2 tests
test gate::replays ... FAILED
test gate::begins ... ok

failures:

---- gate::replays stdout ----
assertion failed

failures:
    gate::replays

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s
";

    fn tally(output: &str) -> TestTally {
        TestTally::of(output.lines())
    }

    fn skips(output: &str) -> Vec<(String, String)> {
        let skips = tally(output).skips.into_iter();
        skips.map(|IgnoredTest { test, reason }| (test, reason)).collect()
    }

    #[test]
    fn libtest_is_read() {
        let expected = [
            ("store::tests::damaged", "sqlite: a damaged page cannot be made by SQL"),
            ("store::tests::slow", "no reason given"),
        ];
        assert_eq!(skips(LIBTEST), expected.map(|(test, reason)| (test.to_owned(), reason.to_owned())));
    }

    #[test]
    fn libtest_mimic_is_read() {
        let expected = [
            ("[sqlite] record::damaged", "sqlite: a damaged page cannot be made by SQL"),
            ("[memory] claim::survives_a_restart", "no reason given"),
        ];
        assert_eq!(skips(MIMIC), expected.map(|(test, reason)| (test.to_owned(), reason.to_owned())));
    }

    #[test]
    fn suites_add_up_and_reasons_are_grouped() {
        assert_eq!(
            tally(&[LIBTEST, MIMIC].concat()).summary(),
            "2 ignored: sqlite: a damaged page cannot be made by SQL\n2 ignored: no reason given\n\
             tests: 3 passed, 0 failed, 4 ignored"
        );
    }

    #[test]
    fn the_failures_stand_before_the_counts() {
        let expected = "failed: gate::replays\n    assertion failed\ntests: 1 passed, 1 failed, 0 ignored";
        assert_eq!(tally(FAILING).summary(), expected);
        let mimic = FAILING.replace(" stdout ----", " ----");
        assert_eq!(tally(&mimic).summary(), expected);
    }

    #[test]
    fn the_output_of_a_failed_test_is_cut() {
        let long = FAILING.replace("assertion failed\n", &"said\n".repeat(100));
        assert_eq!(tally(&long).summary().lines().count(), 1 + SHOWN + 1);
    }

    #[test]
    fn ignored_tests_are_named_with_their_reasons() {
        assert_eq!(
            tally(MIMIC).details(),
            "ignored: [sqlite] record::damaged: sqlite: a damaged page cannot be made by SQL\n\
             ignored: [memory] claim::survives_a_restart: no reason given\n"
        );
    }

    #[test]
    fn a_torn_line_still_counts() {
        let torn = MIMIC.replace("... ignored (", "... hello from the test\nignored (");
        assert_eq!(
            tally(&torn).summary(),
            "1 ignored: no reason given\n1 ignored: whose line could not be read\n\
             tests: 1 passed, 0 failed, 2 ignored"
        );
    }

    #[test]
    fn colour_changes_nothing() {
        let coloured = MIMIC.replace("ignored (", "\u{1b}[33mignored (").replace("SQL)", "SQL)\u{1b}[0m");
        assert_ne!(coloured, MIMIC);
        assert_eq!(skips(&coloured), skips(MIMIC));
    }

    #[test]
    fn other_lines_that_begin_with_test_are_not_counted() {
        let talk = "test gate::replays has been running for over 60 seconds\nrunning tests\nrunning some tests\n";
        let tally = tally(talk);
        assert_eq!((tally.begun, tally.ended, tally.skips.len(), tally.failures.len()), (0, 0, 0, 0));
    }

    #[test]
    fn a_good_run_passes() {
        assert_eq!(tally(LIBTEST).verdict(true), Ok(()));
    }

    #[test]
    fn a_failed_test_fails_the_run_and_is_named() {
        assert_eq!(tally(FAILING).verdict(false), Err("1 test failed".to_owned()));
        assert_eq!(tally(FAILING).details(), "failed: gate::replays\n    assertion failed\n");
    }

    #[test]
    fn a_failed_test_fails_the_run_even_if_cargo_succeeds() {
        assert!(tally(FAILING).verdict(true).is_err());
    }

    #[test]
    fn an_error_of_cargo_fails_the_run_even_if_all_tests_passed() {
        assert!(tally(LIBTEST).verdict(false).is_err());
    }

    #[test]
    fn a_run_without_a_result_fails() {
        let verdict = tally("").verdict(true);
        assert!(verdict.is_err_and(|why| why.contains("no `test result` line")));
    }

    #[test]
    fn a_run_in_which_no_test_passed_fails() {
        let output = "running 1 test\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        assert!(tally(output).verdict(true).is_err());
    }

    #[test]
    fn a_suite_that_stops_half_way_fails_the_run() {
        let cut = [LIBTEST, "running 2 tests\ntest gate::begins ... ok\n"].concat();
        assert_eq!(tally(&cut).verdict(true), Err("1 suite began and printed no `test result`".to_owned()));
    }
}
