//! The binary `hapax`: a table of contents. Each command is a file in `commands/`.

mod causes;
mod commands;
mod config;
mod gateway;
mod hex;
mod logs;
mod ops;
mod store;
mod tls;
mod upstream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A request makes and frees dozens of small things, on one thread and on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A request may arrive many times; its effect happens once, and every copy gets the same answer.
#[derive(Parser)]
#[command(name = "hapax", version = VERSION, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Stand in front of an HTTP API and make its POST and PATCH requests safe to retry.
    Gateway(Box<commands::gateway::GatewayArgs>),
    /// Watch a hostile client, crashes and retries do no harm, and what they do without the gateway.
    Demo(commands::demo::DemoArgs),
}

/// A build that can be told to misbehave says so.
const VERSION: &str =
    if cfg!(feature = "chaos") { concat!(env!("CARGO_PKG_VERSION"), "+chaos") } else { env!("CARGO_PKG_VERSION") };

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 cannot start.
Logs go to standard error; HAPAX_LOG sets their level (error, warn, info, debug).";

fn main() -> ExitCode {
    do_without_huge_pages();
    let cli = Cli::parse();
    logs::start();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return commands::Failure::cannot_start(anyhow::Error::new(error)).report(),
    };
    let ended = runtime.block_on(async {
        tokio::spawn(logs::count_what_is_held_back());
        match cli.command {
            Command::Gateway(args) => commands::gateway::run(*args).await,
            Command::Demo(args) => commands::demo::run(args).await,
        }
    });
    // What still runs has had its time to drain; a task that hangs does not keep the process.
    runtime.shutdown_background();
    ended.unwrap_or_else(|failure| failure.report())
}

/// A page of 2 MiB stays for as long as anything in it is used: of what a thousand connections took, and most have given back, little
/// would return to the system.
fn do_without_huge_pages() {
    #[cfg(target_os = "linux")]
    // A kernel that has none refuses, and nothing is lost.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
