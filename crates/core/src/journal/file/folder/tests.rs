use super::*;

/// A directory with one unlocked file of a journal.
struct Left(PathBuf);

impl Left {
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

    fn lock(&self) -> Option<Locked> {
        Locked::lock(self.open(), self.path()).unwrap()
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_locked_once() {
    let left = Left::new("once");
    let locked = left.lock().unwrap();
    assert!(left.lock().is_none());
    drop(locked);
    assert!(left.lock().is_some());
}

/// Another process adopted and deleted it between the open and the lock here.
#[test]
fn a_file_that_is_no_longer_at_its_path_is_not_taken() {
    let left = Left::new("deleted");
    let (gone, replaced) = (left.open(), left.open());
    fs::remove_file(left.path()).unwrap();
    assert!(Locked::lock(gone, left.path()).unwrap().is_none());
    fs::write(left.path(), b"").unwrap();
    assert!(Locked::lock(replaced, left.path()).unwrap().is_none());
    assert!(left.lock().is_some());
}

/// A second handle of the same open file is what a forked child has of it.
#[test]
fn the_lock_ends_although_a_child_still_has_the_file() {
    let left = Left::new("forked");
    let locked = left.lock().unwrap();
    let _childs = locked.file.try_clone().unwrap();
    drop(locked);
    assert!(left.lock().is_some());
}

#[test]
fn a_file_of_another_user_is_not_adopted() {
    let left = Left::new("foreign");
    let owner = left.open().metadata().unwrap().uid();
    assert_eq!(Locked::left_in(&left.0, owner + 1).unwrap().len(), 0);
    assert_eq!(Locked::left_in(&left.0, owner).unwrap().len(), 1);
}
