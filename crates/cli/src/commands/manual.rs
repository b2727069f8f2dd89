//! `hapax man` and `hapax completions`: files for packages, made from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::serve::exit::CommandError;

const NAME: &str = "hapax";

/// The arguments of `hapax completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The arguments of `hapax man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The directory for the pages: hapax.1, hapax-gateway.1, …; it is created if it is missing
    #[arg(long, value_name = "DIRECTORY")]
    to: PathBuf,
}

/// Prints the completions of one shell.
pub(crate) fn print_completions(args: &CompletionsArgs, mut definition: Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, NAME, &mut script);
    // A reader such as `head` may leave before the end.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Writes a page for each command that the help lists.
pub(crate) fn write_pages(args: &ManArgs, definition: Command) -> Result<ExitCode, CommandError> {
    write_all(&args.to, definition).map_err(CommandError::failed)?;
    Ok(ExitCode::SUCCESS)
}

fn write_all(directory: &Path, mut definition: Command) -> Result<(), anyhow::Error> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    // Passes global arguments and the version on to the commands.
    definition.build();
    write_with_commands(directory, definition, NAME)
}

/// Writes the page of a command and those of its commands: `hapax-dead-list.1` for `hapax dead list`.
fn write_with_commands(directory: &Path, command: Command, name: &str) -> Result<(), anyhow::Error> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        write_with_commands(directory, inner.clone(), &format!("{name}-{}", inner.get_name()))?;
    }
    // The title of a page has the dashes, and its synopsis the spaces.
    let shown = name.replace('-', " ");
    let mut page = Vec::new();
    Man::new(command.display_name(name.to_owned()).bin_name(shown)).title(name).render(&mut page)?;
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}
