use super::*;

/// A directory with one unlocked file of a journal.
struct AbandonedFile(PathBuf);

impl AbandonedFile {
    fn new(test: &str) -> Self {
        let name = format!("hapax-folder-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let left = Self(directory);
        fs::write(left.path(), b"").unwrap();
        left
    }

    fn path(&self) -> PathBuf {
        self.0.join("spill-1.journal")
    }

    fn open(&self) -> File {
        File::open(self.path()).unwrap()
    }

    fn lock(&self) -> Option<LockedFile> {
        LockedFile::lock(self.open(), self.path()).unwrap()
    }
}

impl Drop for AbandonedFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_locked_file_cannot_be_locked_again() {
    let left = AbandonedFile::new("once");
    let locked = left.lock().unwrap();
    assert!(left.lock().is_none());
    drop(locked);
    assert!(left.lock().is_some());
}

/// Another process adopts and deletes the file after it is opened here and before it is locked.
#[test]
fn a_file_that_was_deleted_or_replaced_is_not_locked() {
    let left = AbandonedFile::new("deleted");
    let (gone, replaced) = (left.open(), left.open());
    fs::remove_file(left.path()).unwrap();
    assert!(LockedFile::lock(gone, left.path()).unwrap().is_none());
    fs::write(left.path(), b"").unwrap();
    assert!(LockedFile::lock(replaced, left.path()).unwrap().is_none());
    assert!(left.lock().is_some());
}

/// A forked child has a second handle of the same open file.
#[test]
fn the_lock_ends_while_a_child_still_has_the_file_open() {
    let left = AbandonedFile::new("forked");
    let locked = left.lock().unwrap();
    let _child_handle = locked.file.try_clone().unwrap();
    drop(locked);
    assert!(left.lock().is_some());
}

#[test]
fn a_file_of_another_user_is_not_adopted() {
    let left = AbandonedFile::new("foreign");
    let owner = left.open().metadata().unwrap().uid();
    assert_eq!(LockedFile::left_in(&left.0, owner + 1).unwrap().len(), 0);
    assert_eq!(LockedFile::left_in(&left.0, owner).unwrap().len(), 1);
}
