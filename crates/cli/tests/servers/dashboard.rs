//! The dashboard in a browser.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hapax::RecordKey;
use hapax::stores::Sqlite;
use hapax_testkit::servers::{self, Trial};
use tempfile::TempDir;

use crate::admin_process::AdminProcess;
use crate::browser::Browser;
use crate::dead_letters::id;
use crate::harness::{Api, Gateway, sqlite};
use crate::keys_commands::{ANSWER_BY_HAND, Drill, Planted, plant};

/// The folder that gets a screenshot of each step, if it is set.
const SCREENSHOTS: &str = "HAPAX_SCREENSHOTS";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("dashboard_resolves_unknown_outcomes", "chromium", async || {
            let directory = tempfile::tempdir().unwrap();
            let drill = Drill::start(&sqlite(directory.path()), directory.path()).await;
            tokio::task::block_in_place(|| resolve(&drill));
            drill.check_audit(&drill.record("payment-1").0, "completed").await;
            drill.check_audit(&drill.record("payment-2").0, "released").await;
            drill.check().await;
        }),
        servers::test("dashboard_asks_for_a_token", "chromium", async || {
            let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
            let flags = ["--admin-token-file", &token_file(directory.path(), READS)];
            let gateway = Gateway::start(api.address, &sqlite(directory.path()), &flags).await;
            let sent = gateway.post("/orders", "order-1", "{}").await.unwrap();
            assert_eq!(sent.status, 201);
            tokio::task::block_in_place(|| sign_in(&format!("http://{}", gateway.admin)));
        }),
        servers::test("dashboard_asks_for_another_token_if_one_may_only_read", "chromium", async || {
            let (gateway, rk, _directory) = gateway_with_tokens().await;
            tokio::task::block_in_place(|| write_with_another_token(&format!("http://{}", gateway.admin), rk));
        }),
        servers::test("dashboard_looks_behind_empty_pages_and_shows_errors", "chromium", async || {
            let (gateway, rk, _directory) = gateway_with_tokens().await;
            tokio::task::block_in_place(|| look_behind_empty_pages(&format!("http://{}", gateway.admin), rk));
        }),
        servers::test("dashboard_shows_the_last_hour_and_filters", "chromium", async || {
            let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
            let store = Sqlite::open(directory.path().join("hapax.db")).unwrap();
            let rk = plant(&store, "planted", Planted::Running).await;
            let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
            for (body, status) in [("{}", 201), ("{}", 201), ("{\"other\":1}", 422)] {
                assert_eq!(gateway.post("/orders", "order-1", body).await.unwrap().status, status);
            }
            tokio::task::block_in_place(|| look_around(&format!("http://{}", gateway.admin), rk));
        }),
        servers::test("dashboard_on_a_phone_by_keyboard", "chromium", async || {
            let (worker, rk, _) = AdminProcess::worker().await;
            tokio::task::block_in_place(|| resolve_on_a_phone(&worker, rk));
        }),
        servers::test("dashboard_of_a_worker_drops_and_redrives", "chromium", async || {
            let (worker, rk, _) = AdminProcess::worker().await;
            tokio::task::block_in_place(|| decide_about_messages(&worker, rk));
            let audit = worker.audit("hapax.db.spill");
            assert_eq!(audit.matches("\"action\":\"drop\"").count(), 2, "{audit}");
        }),
        servers::test("dashboard_of_a_relay_resumes_and_drops", "chromium", async || {
            let (relay, _) = AdminProcess::relay().await;
            tokio::task::block_in_place(|| decide_about_events(&relay));
        }),
    ]
}

/// An operator finds both payments, resolves one as done and one as not done.
fn resolve(drill: &Drill) {
    let (mut browser, admin) = (Browser::start(), drill.admin());
    browser.open(&format!("{admin}/"));
    browser.until("document.body.dataset.ready === 'overview'");
    browser.until("document.querySelector('.count.alarm').innerText.startsWith('2')");
    show(&mut browser, "overview");
    browser.click("a[href='#/records/unknown']");
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    show(&mut browser, "records");
    let (status, body) = ANSWER_BY_HAND;
    let (rk, token) = drill.record("payment-1");
    browser.click(&format!("a[href='#/record/{rk}']"));
    browser.click("button[data-action='done']");
    browser.until("document.querySelector('#confirm').open");
    browser.until(&format!("document.querySelector('#confirm-ok').innerText.endsWith('token {token}')"));
    browser.fill("#confirm input[type='number']", &status.to_string());
    browser.fill("#confirm textarea", body);
    show(&mut browser, "confirm");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('main dl').innerText.includes('completed')");
    browser.until("document.querySelectorAll('tbody tr').length === 1");
    show(&mut browser, "record");
    browser.click("button[data-action='answer']");
    browser.until("document.querySelector('#answer').innerText.includes('<b id=')");
    assert_eq!(browser.evaluate("document.querySelector('#planted') === null"), true, "an answer became markup");
    let (rk, token) = drill.record("payment-2");
    browser.evaluate(&format!("location.hash = '#/record/{rk}'"));
    browser.until(&format!("document.querySelector('main dl').innerText.includes('{rk}')"));
    browser.click("button[data-action='not-done']");
    browser.until(&format!("document.querySelector('#confirm-ok').innerText.endsWith('token {token}')"));
    browser.click("#confirm button[value='cancel']");
    assert_eq!(drill.record("payment-2").1, token, "a write that was cancelled is sent");
    browser.click("button[data-action='not-done']");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('main dl').innerText.includes('released')");
    assert!(browser.requested.len() > 10);
    for url in &browser.requested {
        assert!(url.starts_with(&format!("{admin}/")), "the page requests {url}");
    }
}

/// A listener with a token shows nothing without it, and a token that reads cannot write.
fn sign_in(admin: &str) {
    let mut browser = Browser::start();
    browser.open(&format!("{admin}/"));
    browser.until("document.querySelector('#sign-in').open");
    browser.fill("#sign-in input", "a-wrong-token-of-somebody");
    browser.click("#sign-in button");
    browser.until("document.querySelector('#sign-in').open && document.querySelector('#sign-in input').value === ''");
    browser.until("document.querySelector('#sign-in-text').innerText.includes('token is wrong')");
    assert_eq!(browser.evaluate("document.querySelector('#process').innerText"), "");
    browser.fill("#sign-in input", "a-token-that-only-reads");
    browser.click("#sign-in button");
    browser.until("document.body.dataset.ready === 'overview'");
    browser.evaluate("location.hash = '#/records/completed'");
    browser.click("tbody a");
    browser.click("button[data-action='release']");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('#message').innerText.includes('no token may write')");
}

const READS: &str = "a-token-that-only-reads";
const WRITES: &str = "a-token-that-may-write";

fn token_file(directory: &Path, token: &str) -> String {
    let path = directory.join(token);
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// A gateway with a token that reads, one that writes, and a record whose outcome is unknown.
async fn gateway_with_tokens() -> (Gateway, RecordKey, TempDir) {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = Sqlite::open(directory.path().join("hapax.db")).unwrap();
    let rk = plant(&store, "order", Planted::Abandoned).await;
    let [reads, writes] = [READS, WRITES].map(|token| token_file(directory.path(), token));
    let flags = ["--admin-token-file", &*reads, "--admin-write-token-file", &*writes];
    (Gateway::start(api.address, &sqlite(directory.path()), &flags).await, rk, directory)
}

fn sign_in_with(admin: &str, token: &str) -> Browser {
    let mut browser = Browser::start();
    browser.open(&format!("{admin}/"));
    browser.until("document.querySelector('#sign-in').open");
    browser.fill("#sign-in input", token);
    browser.click("#sign-in button");
    browser.until("document.body.dataset.ready === 'overview'");
    browser
}

/// The operator signs in with the token that reads, decides, and is asked for the one that writes.
fn write_with_another_token(admin: &str, rk: RecordKey) {
    let mut browser = sign_in_with(admin, READS);
    browser.evaluate(&format!("location.hash = '#/record/{rk}'"));
    browser.click("button[data-action='not-done']");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('#sign-in').open");
    browser.until("document.querySelector('#sign-in-text').innerText.includes('may only read')");
    browser.fill("#sign-in input", WRITES);
    browser.click("#sign-in button");
    browser.until("document.querySelector('main dl').innerText.includes('released')");
    // What the page before shows cannot be clicked under the address of another one.
    browser.evaluate("location.hash = '#/record/no-key'");
    browser.until("document.querySelector('#message').innerText.includes('32 lower-case')");
    assert_eq!(browser.evaluate("document.querySelector('#page button') === null"), true);
}

/// The first page of each list is empty, as on a large store, and the audit file cannot be read.
fn look_behind_empty_pages(admin: &str, rk: RecordKey) {
    let mut browser = sign_in_with(admin, READS);
    browser.evaluate(
        "(() => {
            const real = window.fetch;
            const answer = (status, body) => Promise.resolve(new Response(JSON.stringify(body), { status }));
            window.fetch = (path, options) => {
                const url = new URL(path, location.href);
                const isAudit = url.pathname.endsWith('/audit');
                if (isAudit) return answer(500, { error: 'audit-failed', detail: 'a bad disk' });
                if (!url.pathname.endsWith('/records')) return real(path, options);
                if (!url.searchParams.has('cursor')) return answer(200, { records: [], damaged: [], next: 'more' });
                url.searchParams.delete('cursor');
                return real(url.href, options);
            };
        })()",
    );
    browser.evaluate("location.hash = '#/records/unknown'");
    browser.until(&format!("document.querySelector('tbody').innerText.includes('{rk}')"));
    browser.until("document.querySelector('#message').innerText === ''");
    browser.evaluate("location.hash = '#/'");
    browser.until("document.querySelector('.count.alarm').innerText.startsWith('1')");
    browser.evaluate(&format!("location.hash = '#/record/{rk}'"));
    browser.until("document.querySelector('main').innerText.includes('cannot be read: a bad disk')");
}

/// The charts count what the gateway did, and the list of records is filtered. A page that loads says so.
fn look_around(admin: &str, rk: RecordKey) {
    let mut browser = Browser::start();
    browser.open(&format!("{admin}/"));
    for name in ["new", "replayed", "refused"] {
        let chart = format!("document.querySelector('[data-chart={name}]')");
        browser.until(&format!("{chart}.querySelector('strong').innerText === '1'"));
        browser.until(&format!("{chart}.querySelector('rect:last-child').getBoundingClientRect().height > 10"));
    }
    browser.until("document.querySelector('[data-chart=unknown] strong').innerText === '0'");
    browser.until("document.querySelector('[data-chart=latency] strong').innerText.endsWith('s')");
    browser.until("/ready\\s+yes/.test(document.querySelector('#health').innerText)");
    browser.until("/journal\\s+empty/.test(document.querySelector('#health').innerText)");
    browser.until("document.title === 'Overview – gateway default – Hapax'");
    show(&mut browser, "charts");
    browser.evaluate("location.hash = '#/records/all'");
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    browser.until("document.title === 'Records – gateway default – Hapax'");
    browser.until("document.querySelector('tbody').innerText.includes('of 600 s left')");
    browser.fill("form.filter input", &rk.operation().to_string());
    browser.click("button[data-action='filter']");
    browser.until("document.querySelectorAll('tbody tr').length === 1");
    browser.until(&format!("document.querySelector('tbody').innerText.includes('{rk}')"));
    browser.until("document.querySelector('form.filter input').value.length === 36");
    browser.fill("form.filter select[name='age']", "1day");
    browser.click("button[data-action='filter']");
    browser.until("document.querySelector('main').innerText.includes('There is no record in this list')");
    browser.evaluate("window.fetch = () => new Promise(() => {})");
    browser.evaluate("location.hash = '#/'");
    browser.until("document.querySelector('main').innerText === 'Loading …'");
    browser.until("document.querySelector('main').ariaBusy === 'true'");
}

/// On a screen of 375 pixels nothing is wider than it, and the tabulator and Enter are enough to decide.
fn resolve_on_a_phone(worker: &AdminProcess, rk: RecordKey) {
    let mut browser = Browser::start();
    browser.be_a_phone();
    browser.open(&format!("http://{}/", worker.admin));
    let letter = format!("dead-letter/{}", id(1));
    for page in ["dead-letters", &letter, "records/all", "records/all/-/1min", ""] {
        browser.evaluate(&format!("location.hash = '#/{page}'"));
        let name = page.split('/').next().filter(|name| !name.is_empty()).unwrap_or("overview");
        browser.until(&format!("document.body.dataset.ready === '{name}'"));
        browser.until("window.innerWidth === 375");
        let width = browser.evaluate("document.documentElement.scrollWidth");
        assert_eq!(width, 375, "{page}: {}", browser.evaluate("document.body.innerText"));
        show(&mut browser, &format!("phone-{name}"));
    }
    browser.tab_to("a[href='#/records/unknown']");
    browser.press("Enter");
    browser.until("document.activeElement.innerText === 'Records'");
    browser.tab_to(&format!("a[href='#/record/{rk}']"));
    browser.press("Enter");
    browser.until("document.activeElement.innerText === 'Record'");
    browser.tab_to("button[data-action='done']");
    browser.press("Enter");
    browser.until("document.querySelector('#confirm').open");
    browser.tab_to("#confirm-ok");
    browser.press("Enter");
    browser.until("document.querySelector('main dl').innerText.includes('completed')");
    let width = browser.evaluate("document.documentElement.scrollWidth");
    assert_eq!(width, 375, "{}", browser.evaluate("document.body.innerText"));
}

/// A worker has its dead letters, and records of messages, which have no response.
fn decide_about_messages(worker: &AdminProcess, rk: RecordKey) {
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", worker.admin));
    browser.until("document.querySelectorAll('.count.alarm').length === 2");
    show(&mut browser, "worker");
    browser.click("a[href='#/dead-letters']");
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    show(&mut browser, "dead-letters");
    browser.click(&format!("a[href='#/dead-letter/{}']", id(1)));
    browser.until("document.querySelector('main dl').innerText.includes('Correct the data and send a new message')");
    browser.click("button[data-action='payload']");
    browser.until("document.querySelector('#payload').innerText.includes('top secret')");
    assert_eq!(browser.evaluate("document.querySelector(\"button[data-action='not-done']\") === null"), true);
    browser.click("button[data-action='drop']");
    browser.click("#confirm-ok");
    browser.until("document.querySelectorAll('tbody tr').length === 1");
    browser.click(&format!("a[href='#/dead-letter/{}']", id(2)));
    browser.click("button[data-action='not-done']");
    browser.until("document.querySelector('#confirm-text').innerText.includes('no attempt still runs')");
    browser.click("#confirm-ok");
    browser.until("document.body.dataset.ready === 'dead-letters'");
    browser.evaluate(&format!("location.hash = '#/record/{rk}'"));
    browser.click("button[data-action='done']");
    browser.until("document.querySelector('#confirm-text').innerText.includes('not processed again')");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('main dl').innerText.includes('completed')");
}

/// Both keys of the relay are parked. The one that is resumed is published.
fn decide_about_events(relay: &AdminProcess) {
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", relay.admin));
    browser.until("document.querySelector('.count.alarm').innerText.startsWith('2')");
    browser.click("a[href='#/outbox']");
    browser.until("document.querySelectorAll('#parked tbody tr').length === 2");
    show(&mut browser, "outbox");
    // The event without a key is published, and the others are set aside with their keys.
    browser.until("document.querySelector('#waiting').innerText.includes('No row waits')");
    browser.click("button[data-action='resume']");
    browser.until("document.querySelector('#confirm-facts').innerText.includes('acme')");
    browser.click("#confirm-ok");
    browser.until("document.querySelectorAll('#parked tbody tr').length === 1");
    browser.click("button[data-action='drop']");
    browser.until("document.querySelector('#confirm-facts').innerText.includes('hex:ff00')");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('#message').innerText.includes('is dropped')");
    browser.click("button[data-action='resume']");
    browser.click("#confirm-ok");
    browser.until("document.querySelector('main').innerText.includes('No key is parked')");
}

fn show(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os(SCREENSHOTS) {
        browser.write_screenshot(&Path::new(&folder).join(format!("{name}.png")));
    }
}
