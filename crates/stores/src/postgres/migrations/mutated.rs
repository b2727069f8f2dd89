//! The bugs that are put into the functions of the ledger on purpose: texts of its migration, and what replaces them.

use std::borrow::Cow;

use crate::chaos::Mutant;

/// A bug, and the texts that it replaces. Each of them is there once.
const BUGS: [(Mutant, &[(&str, &str)]); 4] = [
    (Mutant::PostgresClaimCommits, &[(MUST_REFER, ", constraint hapax_guard_is_finished")]),
    (Mutant::PostgresGuardWithoutHash, &[("and g.operations operator(pg_catalog.=) number;", ";")]),
    (Mutant::PostgresLockAfterSearch, &[(LOCK, ""), (CLAIMED, CLAIMED_AFTER_LOCK)]),
    (
        Mutant::PostgresSearchWithLock,
        &[(include_str!("mutated/search.sql"), include_str!("mutated/search_with_lock.sql"))],
    ),
];

const MUST_REFER: &str = "not null
               default (case when pg_catalog.current_setting('session_replication_role') <> 'replica' then 1 end),
    constraint hapax_guard_is_finished";

const LOCK: &str =
    "    if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended(operation, seed)) then
        return null;
    end if;
";

const CLAIMED: &str = "    return coalesce(guard,";

const CLAIMED_AFTER_LOCK: &str =
    "    if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended(operation, seed)) then
        return null;
    end if;
    return coalesce(guard,";

/// The migration with the bug that is on. Without one, and in a build without `chaos`, it is the migration itself.
///
/// # Panics
/// If the migration of the ledger no longer has a text of the bug.
pub(super) fn mutated(version: i32, sql: &str) -> Cow<'_, str> {
    let bug = BUGS.iter().find(|(mutant, _)| version == LEDGER && mutant.is_on());
    bug.map_or(Cow::Borrowed(sql), |(_, texts)| Cow::Owned(replaced(sql, texts)))
}

/// The version that creates the functions of the ledger.
const LEDGER: i32 = 8;

fn replaced(sql: &str, texts: &[(&str, &str)]) -> String {
    texts.iter().fold(sql.to_owned(), |sql, (text, bug)| {
        assert_eq!(sql.matches(text).count(), 1, "{text}");
        sql.replace(text, bug)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migration_has_the_text_of_each_bug_once() {
        let migration = super::super::MIGRATIONS.iter().find(|it| it.version == LEDGER).unwrap().sql;
        for (mutant, texts) in BUGS {
            assert_ne!(replaced(migration, texts), migration, "{mutant:?}");
        }
    }
}
