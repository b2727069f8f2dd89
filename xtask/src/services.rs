//! `cargo xtask services`: the real servers that tests need. Tests start and end servers of their own; a server that
//! `up` starts runs until `down`.

mod running;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use running::RunningServer;

/// Runs one of the verbs and returns whether it succeeded.
///
/// # Errors
/// Wrong arguments.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<bool, String> {
    let services = ServiceFolder::all(root)?;
    let named = |name: &str| {
        let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
        let found = services.iter().find(|service| service.name == name);
        found.ok_or_else(|| format!("there is no service `{name}`; the services are: {}", names.join(", ")))
    };
    let outcome = match words {
        ["unpack"] => unpack(root).map(|unpacked| println!("{unpacked}")),
        ["up", name] => named(name)?.up(),
        ["down"] => services.iter().try_for_each(ServiceFolder::down),
        ["down", name] => named(name)?.down(),
        ["status"] => services.iter().try_for_each(ServiceFolder::status),
        ["up"] => return Err("services up takes the name of a service".into()),
        ["unpack" | "up" | "down" | "status", .., extra] => return Err(format!("unexpected argument `{extra}`")),
        [other, ..] => return Err(format!("services cannot `{other}`")),
        [] => return Err("services takes unpack, up NAME, down [NAME] or status".into()),
    };
    Ok(outcome.inspect_err(|why| println!("{why}")).is_ok())
}

/// The services that are present, with their versions, and those that are absent, with the reason.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    present: Vec<(String, String)>,
    absent: Vec<(String, String)>,
}

impl Unpacked {
    /// The value of `HAPAX_REQUIRE`: the present services and those that it named already.
    pub(crate) fn required(&self, already: &str) -> String {
        let mut names: Vec<&str> = already.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        names.extend(self.present.iter().map(|(name, _)| name.as_str()));
        names.sort_unstable();
        names.dedup();
        names.join(",")
    }
}

impl fmt::Display for Unpacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = self.present.iter().map(|(name, version)| format!("{name} {version}"));
        let absent = self.absent.iter().map(|(name, why)| format!("no {name} ({why})"));
        let all: Vec<String> = present.chain(absent).collect();
        write!(f, "services: {}", all.join(", "))
    }
}

/// Unpacks every service that can be had here. Where one could be had and cannot be unpacked, that is an error.
pub(crate) fn unpack(root: &Path) -> Result<Unpacked, String> {
    let mut unpacked = Unpacked::default();
    for service in ServiceFolder::all(root)? {
        match service.unpack()? {
            Ok(version) => unpacked.present.push((service.name, version)),
            Err(why) => unpacked.absent.push((service.name, why)),
        }
    }
    Ok(unpacked)
}

/// A folder in `fixtures/` with the two scripts.
struct ServiceFolder {
    name: String,
    folder: std::path::PathBuf,
}

impl ServiceFolder {
    fn all(root: &Path) -> Result<Vec<Self>, String> {
        let fixtures = root.join("fixtures");
        let unreadable = |error| format!("{}: {error}", fixtures.display());
        let mut services = Vec::new();
        for entry in fs::read_dir(&fixtures).map_err(unreadable)? {
            let folder = entry.map_err(unreadable)?.path();
            if folder.join("unpack.sh").exists() && folder.join("server.sh").exists() {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                services.push(Self { name, folder });
            }
        }
        services.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(services)
    }

    /// Returns the version, or the reason why this system has no package for it.
    ///
    /// # Errors
    /// A package that exists and cannot be unpacked.
    fn unpack(&self) -> Result<Result<String, String>, String> {
        let output = output(&mut Command::new(self.folder.join("unpack.sh")))?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => self.version().map(Ok),
            // No package source has it; a server on PATH will do.
            Some(3 | 4) => Ok(self.version().map_err(|_| complaint.lines().last().unwrap_or_default().to_owned())),
            _ => Err(format!("cannot unpack {}:\n{complaint}", self.name)),
        }
    }

    fn version(&self) -> Result<String, String> {
        let output = output(Command::new(self.folder.join("server.sh")).arg("--version"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(version(&String::from_utf8_lossy(&output.stdout)).to_owned())
    }

    fn up(&self) -> Result<(), String> {
        let folder = self.state()?;
        if let Some(running) = RunningServer::read(&folder) {
            println!("{} runs already: {running}", self.name);
            return Ok(());
        }
        let version = self.unpack()??;
        let running = running::start(&self.folder, &folder)?;
        println!("{} {version} runs: {running}", self.name);
        Ok(())
    }

    fn down(&self) -> Result<(), String> {
        match RunningServer::read(&self.state()?) {
            Some(running) => {
                running.end()?;
                println!("{} has ended", self.name);
            }
            None => println!("{} does not run", self.name),
        }
        Ok(())
    }

    fn status(&self) -> Result<(), String> {
        let running = RunningServer::read(&self.state()?);
        let state = running.map_or_else(|| "does not run".to_owned(), |running| format!("runs: {running}"));
        let version = self.version().unwrap_or_else(|why| format!("({why})"));
        println!("{} {version} {state}", self.name);
        Ok(())
    }

    /// The folder of a server that `up` started: its data, its log and its process.
    fn state(&self) -> Result<std::path::PathBuf, String> {
        let home = self.folder.with_file_name("home.sh");
        let output = output(&mut Command::new(home))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("up").join(&self.name))
    }
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))
}

/// `7.0.15` in `Redis server v=7.0.15 sha=00000000`.
fn version(said: &str) -> &str {
    let mut words = said.split_whitespace().map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    words.find(|word| word.starts_with(|first: char| first.is_ascii_digit())).unwrap_or_else(|| said.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn words_that_ask_for_nothing_are_refused() {
        for words in [&[][..], &["up"], &["up", "oracle"], &["down", "redis", "now"], &["status", "x"], &["sideways"]] {
            assert!(run(root(), words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_folder_with_both_scripts_is_a_service() {
        let services = ServiceFolder::all(root()).unwrap();
        let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
        assert!(["chromium", "kafka", "postgres"].iter().all(|name| names.contains(name)), "{names:?}");
    }

    #[test]
    fn what_is_there_is_required_and_what_was_demanded_stays_so() {
        let present = vec![("valkey".into(), "8.0.1".into()), ("redis".into(), "7.0.15".into())];
        let unpacked = Unpacked { present, absent: vec![("nats".into(), "no apt".into())] };
        assert_eq!(unpacked.required(" nats, redis"), "nats,redis,valkey");
        assert_eq!(Unpacked::default().required(""), "");
        assert_eq!(unpacked.to_string(), "services: valkey 8.0.1, redis 7.0.15, no nats (no apt)");
    }

    /// A service whose script to unpack it is this.
    fn service(name: &str, script: &str) -> (ServiceFolder, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("hapax-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("unpack.sh", script), ("server.sh", "echo Server v=1.2; [[ -f there ]]")] {
            let path = folder.join(file);
            fs::write(&path, format!("#!/usr/bin/env bash\ncd \"$(dirname \"$0\")\"\n{text}\n")).unwrap();
            let made = Command::new("chmod").arg("+x").arg(&path).status().unwrap();
            assert!(made.success());
        }
        (ServiceFolder { name: name.into(), folder: folder.clone() }, folder)
    }

    #[test]
    fn what_is_not_to_be_had_is_told_from_what_is_broken() {
        let outcomes =
            ["touch there", "echo a; echo no apt >&2; exit 3", "touch there; exit 4", "echo no net >&2; exit 1"];
        let outcomes = outcomes.map(|script| {
            let (service, folder) = service("unpack", script);
            let outcome = service.unpack();
            fs::remove_dir_all(folder).unwrap();
            outcome
        });
        assert_eq!(outcomes[0], Ok(Ok("1.2".into())));
        assert_eq!(outcomes[1], Ok(Err("no apt".into())));
        assert_eq!(outcomes[2], Ok(Ok("1.2".into())));
        assert_eq!(outcomes[3], Err("cannot unpack unpack:\nno net".into()));
    }
}
