//! Reads the files that a user names, and opens those to which the process appends. An error gives the cause, and not
//! the path, which the caller knows.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
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

/// Whether a name may be a symbolic link to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    /// A user who may write to the folder could put a link to another file there.
    Refused,
}

/// Opens a file to which this process appends, and which it may read. Creates it so that only its owner can use it,
/// whatever the umask is. Refuses one that others may write.
pub(crate) fn open_to_append(path: &Path, links: Links) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(links == Links::Refused).append(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The umask may have removed a permission of the owner.
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        }
        // A link whose target is missing exists, too.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_own(options.create(true), path, links),
        Err(error) => Err(error),
    }
}

/// Opens a file to read what this process, or another one of its user, appended.
pub(crate) fn open_appended(path: &Path) -> io::Result<File> {
    open_own(OpenOptions::new().read(true), path, Links::Refused)
}

fn open_own(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    if links == Links::Refused {
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    }
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
            io::Error::new(error.kind(), "it is a symbolic link; name the file itself")
        }
        Some(_) | None => error,
    })?;
    let metadata = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let is_others = metadata.mode() & 0o022 != 0 || ![own, 0].contains(&metadata.uid());
    // Everybody may write to /dev/null.
    if metadata.is_file() && is_others {
        let message = "others may write to it; run `chmod go-w` on it, as the user of this process, or remove it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(file)
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
