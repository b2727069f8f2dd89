//! What the feature `sqlx` asks of users.

use std::fs;

/// With more features, sqlx puts its SQLite into every lock file, and only one `libsqlite3-sys` may be in a program:
/// the SQLite of this crate would be held back, or could not be built.
#[test]
fn sqlite_of_sqlx_is_not_in_the_lock_file() {
    let lock = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    let has = |name: &str| lock.contains(&format!("name = \"{name}\"\n"));
    assert!(has("sqlx-postgres") && has("libsqlite3-sys"));
    assert!(!has("sqlx-sqlite") && !has("sqlx-mysql"));
}
