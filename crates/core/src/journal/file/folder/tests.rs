use super::*;

/// A directory with one unlocked file of a journal.
struct AbandonedDirectory(PathBuf);

impl AbandonedDirectory {
    fn new(test: &str) -> Self {
        let name = format!("hapax-folder-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let abandoned = Self(directory);
        fs::write(abandoned.path(), b"").unwrap();
        abandoned
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

impl Drop for AbandonedDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_locked_file_cannot_be_locked_again() {
    let abandoned = AbandonedDirectory::new("once");
    let locked = abandoned.lock().unwrap();
    assert!(abandoned.lock().is_none());
    drop(locked);
    assert!(abandoned.lock().is_some());
}

/// Another process adopts and deletes the file after it is opened here and before it is locked. Then a third process
/// creates a new file at the same path.
#[test]
fn a_file_that_was_deleted_or_replaced_is_not_locked() {
    let abandoned = AbandonedDirectory::new("deleted");
    let (gone, replaced) = (abandoned.open(), abandoned.open());
    fs::remove_file(abandoned.path()).unwrap();
    assert!(LockedFile::lock(gone, abandoned.path()).unwrap().is_none());
    fs::write(abandoned.path(), b"").unwrap();
    assert!(LockedFile::lock(replaced, abandoned.path()).unwrap().is_none());
    assert!(abandoned.lock().is_some());
}

/// A forked child has a second handle of the same open file.
#[test]
fn the_lock_ends_while_a_child_still_has_the_file_open() {
    let abandoned = AbandonedDirectory::new("forked");
    let locked = abandoned.lock().unwrap();
    let _child_handle = locked.file.try_clone().unwrap();
    drop(locked);
    assert!(abandoned.lock().is_some());
}

#[test]
fn a_file_of_another_user_is_not_adopted() {
    let abandoned = AbandonedDirectory::new("foreign");
    let owner = abandoned.open().metadata().unwrap().uid();
    assert_eq!(LockedFile::adopt_all(&abandoned.0, owner + 1).unwrap().len(), 0);
    assert_eq!(LockedFile::adopt_all(&abandoned.0, owner).unwrap().len(), 1);
}
