//! The binary `hapax`. Each command is a file in `commands/`.

mod admin;
mod causes;
mod commands;
mod config;
mod files;
mod gateway;
mod guide;
mod place;
mod relay;
mod serve;
mod store;
mod tls;
mod upstream;
mod version;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use serve::exit::CommandError;
use serve::logs;
use version::{LONG_VERSION, VERSION};

/// A request allocates and frees dozens of small objects, often on different threads. mimalloc is faster at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes retries safe: a request may arrive many times, its effect happens once, and every copy gets the same answer.
#[derive(Parser)]
#[command(name = "hapax", version = VERSION, long_version = LONG_VERSION.as_str(), propagate_version = true)]
#[command(after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Stand in front of an HTTP API and make its POST and PATCH requests safe to retry.
    Gateway(Box<commands::gateway::GatewayArgs>),
    /// Take messages from a broker, hand each to an HTTP service once, and acknowledge it afterwards.
    Worker(Box<commands::worker::WorkerArgs>),
    /// Publish the events of an outbox to a broker, a queue or webhooks, in the order of each key.
    Relay(Box<commands::relay::RelayArgs>),
    #[cfg(feature = "demo")]
    #[command(flatten)]
    Demo(commands::demo::DemoCommand),
    /// Create the tables of Hapax in a database, or bring them to the newest version.
    Migrate(commands::migrate::MigrateArgs),
    /// List the keys of the outbox that wait for an operator, let them go on, and publish events again.
    Outbox(commands::outbox::OutboxArgs),
    /// List and show records, and decide about those whose outcome is unknown.
    Keys(Box<commands::keys::KeysArgs>),
    /// Record the answers in a journal whose store was replaced by another one.
    Journal(commands::journal::JournalArgs),
    /// Copy a file of Hapax while processes use it.
    Backup(commands::backup::BackupArgs),
    /// Compare records, ledger and outbox while the system runs, and repair what is certain.
    Reconcile(commands::reconcile::ReconcileArgs),
    /// List the messages that nobody could process, show them, and mark them to be processed again.
    Dead(commands::dead::DeadArgs),
    /// Print how much memory and disk the records will need.
    Plan(commands::plan::PlanArgs),
    /// Print a chapter of the guide, or list them.
    Guide(commands::guide::GuideArgs),
    /// Print the completions of a shell, for instance into ~/.local/share/bash-completion/completions/hapax.
    Completions(commands::manual::CompletionsArgs),
    /// Write the manual pages, one for each command.
    Man(commands::manual::ManArgs),
}

/// The commands in the order of the help, by what a user wants to do.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["gateway", "worker", "relay"]),
    ("Operate", &["keys", "dead", "outbox", "reconcile", "journal", "backup"]),
    ("Set up", &["migrate", "plan", "completions", "man"]),
    ("Try", &["demo", "guide"]),
];

/// The help with a heading for each group. clap has one heading for all commands.
fn help_template(command: &clap::Command) -> StyledStr {
    let header = command.get_styles().get_header();
    let groups = GROUPS.map(|(title, names)| {
        let commands = names.iter().filter_map(|name| command.find_subcommand(name)).map(|command| {
            format!(
                "  {:<12} {}\n",
                command.get_name(),
                command.get_about().map(ToString::to_string).unwrap_or_default()
            )
        });
        let commands: String = commands.collect();
        if commands.is_empty() { commands } else { format!("{header}{title}:{header:#}\n{commands}\n") }
    });
    let groups = groups.concat();
    format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}")
        .into()
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 cannot start.
Logs go to standard error; HAPAX_LOG sets their level (off, error, warn, info, debug, trace).";

/// How long a command waits at its end until its log is written.
const TIME_FOR_LOG: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    disable_huge_pages();
    let command = Cli::command();
    let help = help_template(&command);
    let matches = command.help_template(help).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    #[cfg(feature = "demo")]
    commands::demo::end_with_demo();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return CommandError::cannot_start(anyhow::Error::new(error)).report(),
    };
    let ended = runtime.block_on(async {
        match cli.command {
            Command::Gateway(args) => commands::gateway::run(*args).await,
            Command::Worker(args) => commands::worker::run(*args).await,
            Command::Relay(args) => commands::relay::run(*args).await,
            Command::Migrate(args) => commands::migrate::run(args).await,
            Command::Dead(args) => commands::dead::run(args).await,
            Command::Outbox(args) => commands::outbox::run(args).await,
            Command::Keys(args) => commands::keys::run(*args).await,
            Command::Journal(args) => commands::journal::run(args).await,
            Command::Reconcile(args) => commands::reconcile::run(args).await,
            Command::Backup(args) => commands::backup::run(args).await,
            Command::Guide(args) => commands::guide::run(&args),
            Command::Plan(args) => Ok(commands::plan::run(&args)),
            Command::Completions(args) => Ok(commands::manual::print_completions(&args, Cli::command())),
            Command::Man(args) => commands::manual::write_pages(&args, Cli::command()),
            #[cfg(feature = "demo")]
            Command::Demo(command) => commands::demo::run(command).await,
        }
    });
    // The gateway has ended its log before, if it was serving.
    logs::end_with(TIME_FOR_LOG, logs::report_missing);
    // The command has waited for its requests. A task that hangs must not keep the process alive.
    runtime.shutdown_background();
    ended.unwrap_or_else(|error| error.report())
}

/// Huge pages keep freed connection memory resident, because a page of 2 MiB stays as long as any byte of it is used.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    // Fails on a kernel without huge pages, where it is not needed.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_has_every_command_in_one_group() {
        let command = Cli::command();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        if cfg!(not(feature = "demo")) {
            grouped.retain(|name| *name != "demo");
        }
        let mut known: Vec<_> =
            command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
        let help = help_template(&command).to_string();
        assert!(known.iter().all(|name| help.contains(&format!("\n  {name} "))), "{help}");
    }
}
