//! Reads the files that a user names. An error gives the cause, and not the path, which the caller knows.

use std::fs;
use std::io;
use std::path::Path;

use hapax_core::{Error, ErrorKind, Result};

/// Reads a file.
///
/// # Errors
/// `Unusable` if it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| unreadable(&error))
}

/// Reads a file that must be text.
///
/// # Errors
/// `Unusable` if it cannot be read, or is not text.
pub fn read_text(path: &Path) -> Result<String> {
    text(read(path)?)
}

/// Reads a file with a secret.
///
/// # Errors
/// `Unusable` if it cannot be read, if its group can write it, or if other users have any right to it.
pub fn read_secret(path: &Path) -> Result<Vec<u8>> {
    check_secret(path)?;
    read(path)
}

/// Reads a file with a secret of one line, without the end of the line.
///
/// # Errors
/// As [`read_secret`], and if it is not text.
pub fn read_secret_line(path: &Path) -> Result<String> {
    Ok(text(read_secret(path)?)?.trim_end_matches(['\r', '\n']).to_owned())
}

/// Checks the permissions of a file with a secret. Does not open it.
///
/// # Errors
/// `Unusable` if there is no such file, if its group can write it, or if other users have any right to it.
pub fn check_secret(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(&error))?;
    // A directory is open to others, and that is not the cause.
    if metadata.is_dir() {
        return Err(unreadable(&io::ErrorKind::IsADirectory.into()));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The group may read it: secrets are mounted like this for a process that does not run as root.
        if metadata.permissions().mode() & 0o027 != 0 {
            return Err(unusable(format!(
                "the file can be read by everybody or written by others; run `chmod 600 {}`, or set `defaultMode: \
                 0400` in the volume if Kubernetes mounts it",
                path.display()
            )));
        }
    }
    Ok(())
}

fn text(content: Vec<u8>) -> Result<String> {
    String::from_utf8(content).map_err(|error| unusable(format!("the file is not UTF-8 text: {}", error.utf8_error())))
}

fn unreadable(error: &io::Error) -> Error {
    match CAUSES.iter().find(|(kind, _)| *kind == error.kind()) {
        Some((_, cause)) => unusable((*cause).to_owned()),
        None => unusable(format!("the file cannot be read: {error}")),
    }
}

const CAUSES: [(io::ErrorKind, &str); 3] = [
    (io::ErrorKind::NotFound, "there is no such file"),
    (io::ErrorKind::PermissionDenied, "this user has no permission to read the file"),
    (io::ErrorKind::IsADirectory, "this is a directory; name a file"),
];

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_unreadable_file_has_its_cause() {
        for (kind, cause) in [
            (io::ErrorKind::NotFound, "there is no such file"),
            (io::ErrorKind::PermissionDenied, "no permission"),
            (io::ErrorKind::IsADirectory, "directory"),
            (io::ErrorKind::InvalidData, "cannot be read"),
        ] {
            assert!(unreadable(&kind.into()).to_string().contains(cause), "{kind}");
        }
    }

    #[test]
    fn a_secret_that_others_can_read_or_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "secret\r\n").unwrap();
        for mode in [0o604, 0o644, 0o620, 0o602, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unusable, "{mode:o}");
            assert!(error.to_string().contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
        for mode in [0o600, 0o400, 0o640] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret_line(&path).unwrap(), "secret", "{mode:o}");
        }
        let missing = check_secret(&folder.path().join("missing")).unwrap_err();
        assert_eq!(missing.to_string(), "there is no such file");
        let directory = read_secret(folder.path()).unwrap_err();
        assert!(directory.to_string().contains("name a file"), "{directory}");
    }

    #[test]
    fn a_text_is_utf_8() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("UTF-8"));
    }
}
