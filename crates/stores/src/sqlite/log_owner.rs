//! Notes in `FILE.turn` to which file the log beside it belongs. SQLite writes a log that it finds into the file beside
//! it, also if that file was replaced by a backup meanwhile: the backup is damaged then.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use hapax_core::{Error, ErrorKind, Result};

use super::connection::create_private;

/// Refuses a file whose log was noted as that of another file. Call it before the file is opened.
pub(super) fn check(path: &Path) -> Result<()> {
    let Ok(place) = fs::canonicalize(path) else { return Ok(()) };
    let log = beside(&place, "-wal");
    if !fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Ok(());
    }
    let noted = fs::read_to_string(beside(&place, ".turn")).unwrap_or_default();
    let Ok(now) = ownership(&place) else { return Ok(()) };
    let (Some((file, log)), Some((file_now, log_now))) = (noted.split_once(' '), now.split_once(' ')) else {
        return Ok(());
    };
    // If both are others, they may have come together.
    if log != log_now || file == file_now {
        return Ok(());
    }
    let place = place.display();
    let message = format!(
        "{place}-wal is the log of another file that was at {place} before, and would damage this one; if you have \
         restored {place}, remove {place}-wal and {place}-shm; if you have restored both, remove {place}.turn"
    );
    Err(Error::new(ErrorKind::Unusable, message))
}

/// Notes the owner of the log, which a connection has open. A note that cannot be written only protects nobody.
pub(super) fn note(path: &Path) {
    let Ok(place) = fs::canonicalize(path) else { return };
    let Ok(now) = ownership(&place) else { return };
    let note = beside(&place, ".turn");
    create_private(&note);
    if fs::read_to_string(&note).is_ok_and(|noted| noted != now) {
        let _ = fs::write(&note, now);
    }
}

/// The inode of the file, and after a space the inode of its log and when the log was created: an inode is used again.
fn ownership(place: &Path) -> io::Result<String> {
    let (file, log) = (fs::metadata(place)?, fs::metadata(beside(place, "-wal"))?);
    let created = log.created()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(format!("{} {}.{}\n", file.ino(), log.ino(), created.as_nanos()))
}

fn beside(place: &Path, suffix: &str) -> PathBuf {
    let mut path = place.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
