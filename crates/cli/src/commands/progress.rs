use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

/// Tells on standard error how far a long command is, so that the operator sees that it works. A terminal shows a line
/// that counts; elsewhere a line comes every ten seconds. A short command says nothing.
#[derive(Debug)]
pub(crate) struct CommandProgress {
    /// The name of the counted things, in the plural.
    what: &'static str,
    count: u64,
    told: Instant,
    is_counting_line: bool,
    is_line_open: bool,
}

const EVERY: Duration = Duration::from_secs(10);
const EVERY_ON_A_TERMINAL: Duration = Duration::from_secs(1);

impl CommandProgress {
    /// Nothing is counted. `what` is the plural of what the command goes through, for instance `records looked at`.
    pub(crate) fn of(what: &'static str) -> Self {
        // Where the results go to the terminal, too, they show the progress, and a counting line would be among them.
        let is_counting_line = stderr().is_terminal() && !stdout().is_terminal();
        Self { what, count: 0, told: Instant::now(), is_counting_line, is_line_open: false }
    }

    /// Counts these, and tells it if the last line is old enough.
    pub(crate) fn add(&mut self, count: usize) {
        self.count += u64::try_from(count).unwrap_or(u64::MAX);
        let every = if self.is_counting_line { EVERY_ON_A_TERMINAL } else { EVERY };
        if self.told.elapsed() < every {
            return;
        }
        self.told = Instant::now();
        let (end, line) = (if self.is_counting_line { "\r" } else { "\n" }, self.line());
        // Nobody may read it any more.
        let _ = write!(stderr(), "{line}{end}").and_then(|()| stderr().flush());
        self.is_line_open = self.is_counting_line;
    }

    fn line(&self) -> String {
        format!("{} {} so far", self.count, self.what)
    }
}

impl Drop for CommandProgress {
    /// Leaves the counting line, so that what follows does not overwrite it.
    fn drop(&mut self) {
        if self.is_line_open {
            let _ = writeln!(stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_what_the_command_went_through() {
        let mut progress = CommandProgress::of("records looked at");
        progress.add(500);
        progress.add(20);
        assert_eq!(progress.line(), "520 records looked at so far");
        assert!(!progress.is_line_open, "a short command says nothing");
    }
}
