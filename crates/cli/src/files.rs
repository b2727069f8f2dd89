//! Reads the files that a user names. An error gives the cause, and not the path, which the caller knows.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, anyhow::Error> {
    fs::read(path).map_err(unreadable)
}

/// Reads a file that must be text.
pub(crate) fn read_text(path: &Path) -> Result<String, anyhow::Error> {
    String::from_utf8(read(path)?).map_err(|error| error.utf8_error()).context("the file is not UTF-8 text")
}

/// Reads a file with a secret. Refuses one that everybody can read, or that others can write.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, anyhow::Error> {
    check_secret(path)?;
    read(path)
}

/// Refuses a file that everybody can read, or that others can write. Does not open it.
pub(crate) fn check_secret(path: &Path) -> Result<(), anyhow::Error> {
    let metadata = fs::metadata(path).map_err(unreadable)?;
    // A directory is open to others, and that is not the cause.
    if metadata.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    // The group may read it: secrets are mounted like this for a process that does not run as root.
    if metadata.permissions().mode() & 0o027 != 0 {
        bail!(
            "the file can be read by everybody or written by others; run `chmod 600 {}`, or set `defaultMode: 0400` in \
             the volume if Kubernetes mounts it",
            path.display()
        );
    }
    Ok(())
}

fn unreadable(error: io::Error) -> anyhow::Error {
    match CAUSES.iter().find(|(kind, _)| *kind == error.kind()) {
        Some((_, cause)) => anyhow!(*cause),
        None => anyhow!(error).context("the file cannot be read"),
    }
}

const CAUSES: [(io::ErrorKind, &str); 3] = [
    (io::ErrorKind::NotFound, "there is no such file"),
    (io::ErrorKind::PermissionDenied, "this user has no permission to read the file"),
    (io::ErrorKind::IsADirectory, "this is a directory; name a file"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_has_its_cause() {
        for (kind, cause) in [
            (io::ErrorKind::NotFound, "there is no such file"),
            (io::ErrorKind::PermissionDenied, "no permission"),
            (io::ErrorKind::IsADirectory, "directory"),
            (io::ErrorKind::InvalidData, "cannot be read"),
        ] {
            assert!(unreadable(kind.into()).to_string().contains(cause), "{kind}");
        }
    }
}
