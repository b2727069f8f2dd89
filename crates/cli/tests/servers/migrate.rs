//! `hapax migrate` on PostgreSQL.

use std::process::Stdio;

use hapax_testkit::servers::{self, PostgresServer, Trial};

use crate::harness::hapax;

pub(crate) fn tests() -> Vec<Trial> {
    let postgres = "postgres";
    vec![
        servers::test("ten_processes_create_the_tables_at_once", postgres, ten_at_once),
        servers::test("a_printed_script_creates_the_tables", postgres, printed_script),
    ]
}

async fn ten_at_once() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let start = || {
        let mut migrate = hapax();
        migrate
            .args(["migrate", "--database", &schema.url()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..10).map(|_| start()).collect();
    let mut applied = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        applied += usize::from(output.stdout.starts_with(b"applied: versions 1, 2, 3, 4, 5, 6, 7\n"));
    }
    assert_eq!(applied, 1, "one process applies the versions, and the others find nothing to do");
}

async fn printed_script() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let run = |flag: &str| hapax().args(["migrate", "--database", &schema.url(), flag]).output().unwrap();
    let script = run("--print");
    assert!(script.status.success(), "{script:?}");
    assert_eq!(run("--check").status.code(), Some(1), "printing changes nothing");
    // The role that owns the schema runs the script.
    schema.admin().batch_execute(&format!("set role {}", schema.name())).await.unwrap();
    schema.admin().batch_execute(&String::from_utf8(script.stdout).unwrap()).await.unwrap();
    let check = run("--check");
    assert_eq!(check.status.code(), Some(0), "{check:?}");
}
