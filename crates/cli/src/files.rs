//! Reads the files that a user names, and opens those to which the process appends.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub(crate) use hapax_net::files::{check_secret, read, read_secret, read_text};

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
