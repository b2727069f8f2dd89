//! Other roles of the database: what they own, have added or could create.

use hapax_core::ErrorKind::Unusable;
use hapax_core::broker::DeadLetterStore;
use hapax_core::outbox::Outbox;
use hapax_core::store::{Finding, Inspect, Severity};
use hapax_stores::{PostgresDeadLetters, PostgresOutbox, PostgresTables};
use libtest_mimic::Trial;

use super::ledger::{call, ledger, run, terms};
use super::{POSTGRES, schema, store};
use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, test};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("tables_of_another_role_are_refused", POSTGRES, foreign_tables),
        test("nothing_of_another_role_runs_before_its_tables_are_refused", POSTGRES, foreign_view),
        test("triggers_rules_and_policies_of_others_are_refused", POSTGRES, additions),
        test("a_trigger_of_hapax_with_another_definition_is_refused", POSTGRES, changed_trigger),
        test("the_owner_of_the_schema_is_reported_if_it_is_another_role", POSTGRES, owner_of_schema),
        test("a_name_that_is_taken_is_told", POSTGRES, taken_names),
        test("a_schema_in_which_others_may_create_is_reported", POSTGRES, open_schema),
        test("a_search_path_with_the_system_behind_others_is_refused", POSTGRES, late_system),
    ]
}

fn refusals(findings: &[Finding]) -> Vec<&str> {
    let refusals = findings.iter().filter(|finding| finding.severity == Severity::Refuse);
    refusals.map(|finding| &*finding.message).collect()
}

async fn foreign_tables() {
    let schema = schema().await;
    let (name, admin) = (schema.name(), schema.admin());
    store(&schema.url()).check().await.unwrap();
    admin.batch_execute(&format!("create role {name}_other login")).await.unwrap();
    for table in ["hapax_record", "hapax_ledger", "hapax_outbox", "hapax_dead", "hapax_migration", "hapax_dead_number"]
    {
        // A sequence has the owner of its table, unless it is no longer part of it.
        if table == "hapax_dead_number" {
            admin.batch_execute("alter sequence hapax_dead_number owned by none").await.unwrap();
        }
        admin.batch_execute(&format!("alter table {table} owner to {name}_other")).await.unwrap();
        let message = format!("is owned by the role {name}_other");
        assert_refused(Operation::new("one").begin(&*store(&schema.url()), FIRST).await, Unusable, &message);
        assert!(run(&ledger(&schema.url(), terms()), "one").await.is_err(), "{table}");
        let url = schema.url().parse().unwrap();
        assert_refused(PostgresOutbox::connect(&url).unwrap().horizon().await, Unusable, &message);
        assert_refused(PostgresDeadLetters::connect(&url).unwrap().list(None, 1).await, Unusable, &message);
        assert_refused(PostgresTables::connect(&url).unwrap().missing().await, Unusable, &message);
        admin.batch_execute(&format!("alter table {table} owner to {name}")).await.unwrap();
    }
    // Its owner could write another body.
    let own = async |owner: &str| {
        let alter = format!("alter function hapax_hold_republications() owner to {owner}");
        admin.batch_execute(&alter).await.unwrap();
    };
    own(&format!("{name}_other")).await;
    let url = schema.url().parse().unwrap();
    let refused = PostgresOutbox::connect(&url).unwrap().horizon().await;
    assert_refused(refused, Unusable, &format!("hapax_hold_republications is owned by the role {name}_other"));
    own(name).await;
    Operation::new("one").cycle(&*store(&schema.url())).await;
    // A superuser and the owner of the database may do everything anyway.
    admin.batch_execute("alter table hapax_record owner to postgres").await.unwrap();
    let grant = format!("grant all on hapax_record to {name}");
    admin.batch_execute(&grant).await.unwrap();
    Operation::new("two").cycle(&*store(&schema.url())).await;
}

/// Another role has created a view with the name of the table that is read first.
async fn foreign_view() {
    let schema = schema().await;
    let (name, admin) = (schema.name(), schema.admin());
    let plant = format!(
        "create role {name}_other login;
         create table called ();
         grant insert on called to public;
         create function spy() returns integer language sql as 'insert into {name}.called default values; select 7';
         create view hapax_migration as select spy() as version;
         alter function spy() owner to {name}_other;
         alter view hapax_migration owner to {name}_other;
         grant select on hapax_migration to public;
         grant usage on schema {name} to public"
    );
    admin.batch_execute(&plant).await.unwrap();
    let begun = Operation::new("one").begin(&*store(&schema.url()), FIRST).await;
    assert_refused(begun, Unusable, "hapax_migration is owned by");
    let called = admin.query_one("select count(*) from called", &[]).await.unwrap();
    assert_eq!(called.get::<_, i64>(0), 0);
}

async fn additions() {
    let schema = schema().await;
    let admin = schema.admin();
    let (running, ledger) = (store(&schema.url()), ledger(&schema.url(), terms()));
    let outbox = PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap();
    assert_eq!(running.check().await.unwrap(), []);
    let function = "create function spy() returns trigger language plpgsql as 'begin return new; end'";
    admin.batch_execute(function).await.unwrap();
    for (add, drop, message) in [
        (
            "create trigger spy before insert on hapax_record for each row execute function spy()",
            "drop trigger spy on hapax_record",
            "hapax_record has the trigger spy",
        ),
        (
            "alter trigger hapax_outbox_attributes on hapax_outbox rename to other",
            "alter trigger other on hapax_outbox rename to hapax_outbox_attributes",
            "hapax_outbox has the trigger other",
        ),
        (
            "create rule spy as on insert to hapax_ledger do also notify spy",
            "drop rule spy on hapax_ledger",
            "hapax_ledger has the rule spy",
        ),
        (
            "create policy spy on hapax_dead using (true)",
            "drop policy spy on hapax_dead",
            "hapax_dead has the policy spy",
        ),
        (
            "alter table hapax_store enable row level security",
            "alter table hapax_store disable row level security",
            "hapax_store has row-level security",
        ),
    ] {
        admin.batch_execute(add).await.unwrap();
        for findings in [running.check().await, ledger.check(1).await, outbox.check().await] {
            let findings = findings.unwrap();
            assert!(refusals(&findings).iter().any(|text| text.contains(message)), "{message}: {findings:?}");
        }
        assert_refused(Operation::new("one").begin(&*store(&schema.url()), FIRST).await, Unusable, message);
        admin.batch_execute(drop).await.unwrap();
    }
    Operation::new("one").cycle(&*store(&schema.url())).await;
}

/// A role that may add triggers may replace the one of Hapax, whose condition runs with the rights of the writer.
async fn changed_trigger() {
    let schema = schema().await;
    let admin = schema.admin();
    let (store, outbox) = (store(&schema.url()), PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap());
    assert_eq!(store.check().await.unwrap(), []);
    let create = "create or replace trigger hapax_outbox_attributes";
    let told = "select pg_get_triggerdef(oid) from pg_trigger where tgname = 'hapax_outbox_attributes'
                   and tgrelid = 'hapax_outbox'::regclass";
    let own: String = admin.query_one(told, &[]).await.unwrap().get(0);
    let restore = own.replace("CREATE TRIGGER hapax_outbox_attributes", create);
    let spy = "create function spy(text) returns boolean language sql as 'select false';
               create function length(text) returns integer language sql as 'select 0'";
    admin.batch_execute(spy).await.unwrap();
    let spied = restore.replace("octet_length", &format!("{}.length", schema.name()));
    let always = restore.replace(" 255", " 0");
    let at_update = restore.replace("BEFORE INSERT", "BEFORE INSERT OR UPDATE");
    let end = "execute function hapax_refuse_event()";
    for changed in [
        format!("{create} before insert on hapax_outbox for each row when (spy(new.topic)) {end}"),
        format!("{create} before insert on hapax_outbox for each row {end}"),
        format!("{create} before truncate on hapax_outbox {end}"),
        spied,
        always,
        at_update,
    ] {
        assert_ne!(changed, restore);
        // PostgreSQL replaces no trigger by one of another level.
        admin.batch_execute("drop trigger hapax_outbox_attributes on hapax_outbox").await.unwrap();
        admin.batch_execute(&changed).await.unwrap();
        for findings in [store.check().await, outbox.check().await] {
            let findings = findings.unwrap();
            let is_told = |text: &&str| text.contains("hapax_outbox has the trigger hapax_outbox_attributes");
            assert!(refusals(&findings).iter().any(is_told), "{changed}: {findings:?}");
        }
    }
    admin.batch_execute("drop trigger hapax_outbox_attributes on hapax_outbox").await.unwrap();
    admin.batch_execute(&restore).await.unwrap();
    assert_eq!(store.check().await.unwrap(), []);
}

async fn owner_of_schema() {
    let schema = schema().await;
    let (name, admin) = (schema.name(), schema.admin());
    let (store, ledger) = (store(&schema.url()), ledger(&schema.url(), terms()));
    let outbox = PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap();
    assert_eq!(store.check().await.unwrap(), []);
    let own = async |owner: &str| {
        let alter = format!("alter schema {name} owner to {owner}; grant usage on schema {name} to {name}");
        admin.batch_execute(&alter).await.unwrap();
    };
    admin.batch_execute(&format!("create role {name}_other login")).await.unwrap();
    own(&format!("{name}_other")).await;
    for findings in [store.check().await, ledger.check(1).await, outbox.check().await] {
        let findings = findings.unwrap();
        let [Finding { severity: Severity::Warn, message }] = &findings[..] else { panic!("{findings:?}") };
        assert!(message.starts_with(&format!("the schema {name} is owned by the role {name}_other")), "{message}");
    }
    // The owner of the database, who is a superuser here, may do everything anyway.
    for owner in ["postgres", "pg_database_owner", name] {
        own(owner).await;
        for findings in [store.check().await, ledger.check(1).await, outbox.check().await] {
            assert_eq!(findings.unwrap(), [], "{owner}");
        }
    }
}

async fn taken_names() {
    let schema = schema().await;
    let (url, admin) = (schema.url().parse().unwrap(), schema.admin());
    for (take, free, message) in [
        ("create domain hapax_ledger as text", "drop domain hapax_ledger", "hapax_ledger"),
        ("create table hapax_record_token ()", "drop table hapax_record_token", "hapax_record_token"),
        (
            "create function hapax_order(okey bytea) returns void language sql as ''",
            "drop function hapax_order(bytea)",
            "hapax_order",
        ),
        ("create view hapax_outbox as select 1", "drop view hapax_outbox", "hapax_outbox is a view"),
        ("create sequence hapax_migration", "drop sequence hapax_migration", "hapax_migration is a sequence"),
        ("create table hapax_dead_number ()", "drop table hapax_dead_number", "hapax_dead_number is a table"),
    ] {
        admin.batch_execute(take).await.unwrap();
        assert_refused(Operation::new("one").begin(&*store(&schema.url()), FIRST).await, Unusable, message);
        assert_refused(PostgresDeadLetters::connect(&url).unwrap().list(None, 1).await, Unusable, message);
        assert_refused(PostgresTables::connect(&url).unwrap().create().await, Unusable, message);
        match PostgresOutbox::connect(&url).unwrap().check().await {
            Ok(findings) => assert!(refusals(&findings)[0].contains(message), "{findings:?}"),
            refused => assert_refused(refused, Unusable, message),
        }
        admin.batch_execute(free).await.unwrap();
    }
    Operation::new("one").cycle(&*store(&schema.url())).await;
}

async fn open_schema() {
    let schema = schema().await;
    let (name, admin) = (schema.name(), schema.admin());
    let (store, ledger) = (store(&schema.url()), ledger(&schema.url(), terms()));
    let outbox = PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap();
    assert_eq!(store.check().await.unwrap(), []);
    let role = format!("create role {name}_other login");
    admin.batch_execute(&role).await.unwrap();
    for grantee in ["public".to_owned(), format!("{name}_other")] {
        admin.batch_execute(&format!("grant create on schema {name} to {grantee}")).await.unwrap();
        for findings in [store.check().await, ledger.check(1).await, outbox.check().await] {
            let findings = findings.unwrap();
            let [Finding { severity: Severity::Warn, message }] = &findings[..] else { panic!("{findings:?}") };
            assert!(message.contains(&format!("may create objects in the schema {name}")), "{message}");
        }
        admin.batch_execute(&format!("revoke create on schema {name} from {grantee}")).await.unwrap();
    }
    // What is not in the path does not matter.
    let elsewhere = format!("create schema {name}_elsewhere; grant all on schema {name}_elsewhere to public");
    admin.batch_execute(&elsewhere).await.unwrap();
    assert_eq!(ledger.check(1).await.unwrap(), []);
    // Another schema of the path matters to the handlers of a ledger. The sessions of a store do not have it.
    let path = format!("alter role {name} set search_path = {name}, {name}_elsewhere");
    admin.batch_execute(&path).await.unwrap();
    let (other_ledger, other_store) = (super::ledger::ledger(&schema.url(), terms()), super::store(&schema.url()));
    assert_eq!(other_ledger.check(1).await.unwrap().len(), 1);
    assert_eq!(other_store.check().await.unwrap(), []);
    // The owner of a schema may always create there.
    let owned = format!(
        "revoke all on schema {name}_elsewhere from public;
         alter schema {name}_elsewhere owner to {name}_other;
         grant usage on schema {name}_elsewhere to {name}"
    );
    admin.batch_execute(&owned).await.unwrap();
    assert_eq!(super::ledger::ledger(&schema.url(), terms()).check(1).await.unwrap().len(), 1);
}

async fn late_system() {
    let schema = schema().await;
    let (name, admin) = (schema.name(), schema.admin());
    store(&schema.url()).check().await.unwrap();
    let path = format!(
        "create schema {name}_open; grant create, usage on schema {name}_open to public;
         alter role {name} set search_path = {name}_open, pg_catalog, {name}"
    );
    admin.batch_execute(&path).await.unwrap();
    let ledger = ledger(&schema.url(), terms());
    let findings = ledger.check(1).await.unwrap();
    assert!(refusals(&findings)[0].contains("before pg_catalog"), "{findings:?}");
    let ran = ledger.run(call("one"), async |_, _| Ok(String::from("never"))).await;
    assert!(ran.is_err());
    // A store chooses its own path.
    Operation::new("one").cycle(&*store(&schema.url())).await;
}
