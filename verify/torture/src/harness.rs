//! The parts that the programs of the proofs share: their arguments for a report, a folder, a runtime, and the report.

use std::fmt::{Display, Write};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::Context;
use clap::Parser;

use crate::with_section;

/// The arguments for a report.
#[derive(clap::Args, Clone, Debug)]
pub struct ReportArguments {
    /// The report in which a run that shows what it is for writes its section.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The commit that the section names.
    #[arg(long, default_value = "")]
    pub commit: String,
}

/// A program that tortures something, and audits what it did.
pub trait Proof: Parser {
    /// The name of the folder of a run, below that for temporary files.
    const FOLDER: &'static str;

    /// The arguments for the report.
    fn report(&self) -> &ReportArguments;

    /// The command that repeats the run.
    fn command(&self) -> String;

    /// Runs, with its logs in this folder.
    fn run(&self, folder: &Path) -> impl Future<Output = anyhow::Result<ProofEnd>>;

    /// An empty section with this heading.
    fn section(&self, heading: &str) -> ProofSection {
        ProofSection::new(heading, &self.command(), &self.report().commit)
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct ProofEnd {
    /// The section of the report.
    pub section: ProofSection,
    /// What the audit found. The first 20 are printed.
    pub damages: Vec<String>,
    /// Whether the program ends with success. The folder is removed then.
    pub has_passed: bool,
    /// Whether the section goes into the report.
    pub is_recorded: bool,
}

impl ProofEnd {
    /// The end of a run that passes, and is recorded, if the audit found nothing.
    pub fn of<D: Display>(section: ProofSection, damages: &[D]) -> Self {
        let damages: Vec<String> = damages.iter().map(ToString::to_string).collect();
        let is_clean = damages.is_empty();
        Self { section, damages, has_passed: is_clean, is_recorded: is_clean }
    }
}

/// A section of a report: a heading, the command that repeats the run, and a table of figures.
#[derive(Debug)]
pub struct ProofSection {
    text: String,
}

impl ProofSection {
    fn new(heading: &str, command: &str, commit: &str) -> Self {
        let mut section = Self { text: format!("## {heading}\n\n`{command}`\n\n| | |\n|---|--:|\n") };
        if !commit.is_empty() {
            section.row("commit", commit);
        }
        section
    }

    /// Adds a row to the table.
    pub fn row(&mut self, what: &str, figure: impl Display) {
        self.line(&format!("| {what} | {figure} |"));
    }

    /// Adds a line, for instance behind the table.
    pub fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("memory has room");
    }
}

/// The parser of an argument that is the word of one of these values.
pub fn one_of<T>(
    values: &'static [T],
    word: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync
where
    T: Copy + Send + Sync,
{
    move |given| {
        let found = values.iter().copied().find(|value| word(*value) == given);
        let words = || values.iter().map(|value| word(*value)).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("it is one of: {}", words()))
    }
}

/// Runs the program.
pub fn main<P: Proof>() -> ExitCode {
    exit_code(execute(&P::parse()))
}

/// The exit code of a program that found out whether something holds. It prints an error.
pub fn exit_code(holds: anyhow::Result<bool>) -> ExitCode {
    match holds {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute<P: Proof>(proof: &P) -> anyhow::Result<bool> {
    let folder = env::temp_dir().join(format!("{}-{}", P::FOLDER, std::process::id()));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    println!("{}; the logs are in {}", proof.command(), folder.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let end = runtime.block_on(proof.run(&folder))?;
    print!("{}", end.section.text);
    for found in end.damages.iter().take(20) {
        println!("{found}");
    }
    if let Some(path) = proof.report().report.as_ref().filter(|_| end.is_recorded) {
        let earlier = fs::read_to_string(path).unwrap_or_default();
        fs::write(path, with_section(&earlier, &end.section.text))?;
    }
    if end.has_passed {
        fs::remove_dir_all(&folder)?;
    }
    Ok(end.has_passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Nothing {
        /// A number.
        #[arg(long, value_parser = one_of(&[1_u8, 2], |number| if number == 1 { "one" } else { "two" }))]
        number: u8,
        #[command(flatten)]
        report: ReportArguments,
    }

    /// Finds as many damages as its number says, less one.
    impl Proof for Nothing {
        const FOLDER: &'static str = "hapax-nothing";

        fn report(&self) -> &ReportArguments {
            &self.report
        }

        fn command(&self) -> String {
            format!("prove {}", self.number)
        }

        async fn run(&self, _: &Path) -> anyhow::Result<ProofEnd> {
            let mut section = self.section("Nothing");
            section.row("transfers", self.number);
            Ok(ProofEnd::of(section, &vec!["a damage"; usize::from(self.number) - 1]))
        }
    }

    #[test]
    fn a_run_that_passes_writes_its_section() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("REPORT.md");
        let run = |number: &str| {
            let words = ["nothing", "--number", number, "--commit", "c0ffee", "--report", report.to_str().unwrap()];
            execute(&Nothing::try_parse_from(words).map_err(|error| error.to_string()).unwrap()).unwrap()
        };
        assert!(!run("two"));
        assert!(!report.exists());
        assert!(run("one"));
        let section = "\n## Nothing\n\n`prove 1`\n\n| | |\n|---|--:|\n| commit | c0ffee |\n| transfers | 1 |\n";
        assert!(fs::read_to_string(&report).unwrap().ends_with(section));
        let Err(error) = Nothing::try_parse_from(["nothing", "--number", "three"]) else { panic!("it is no number") };
        assert!(error.to_string().contains("it is one of: one, two"), "{error}");
    }
}
