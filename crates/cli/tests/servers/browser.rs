//! A browser without a window, driven over the pipes of its DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::DEADLINE;

/// A process with one tab. It ends with this value.
pub(crate) struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    calls: u64,
    /// The addresses that the tab has requested.
    pub(crate) requested: Vec<String>,
    // Removed after the process has ended.
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/chromium/server.sh");
        // It reads commands from file 3 and writes answers to file 4.
        let command = "exec \"$0\" --no-sandbox --disable-dev-shm-usage --window-size=1200,900 --remote-debugging-pipe \
                       \"--user-data-dir=$1\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut process = Command::new("bash");
        process.args(["-c", command]).arg(script).arg(profile.path());
        let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, messages) = (process.stdin.take().unwrap(), read_messages(process.stdout.take().unwrap()));
        let requested = Vec::new();
        let mut own = Self { process, input, messages, session: Value::Null, calls: 0, requested, _profile: profile };
        let target = own.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].take();
        let session = own.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        own.session = session["sessionId"].clone();
        own.call("Network.enable", &json!({}));
        own
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// The value of a JavaScript expression.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let mut outcome = self.call("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }));
        assert!(outcome["exceptionDetails"].is_null(), "{expression}: {outcome}");
        outcome["result"]["value"].take()
    }

    /// Waits until a JavaScript expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let begun = Instant::now();
        // While the page changes, an element may be missing.
        let tried = format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        while self.evaluate(&tried) != true {
            if begun.elapsed() > DEADLINE {
                let page = self.evaluate("document.body.innerText");
                panic!("{expression} does not become true: {page}");
            }
            if let Ok(message) = self.messages.recv_timeout(Duration::from_millis(20)) {
                self.note_request(&message);
            }
        }
    }

    /// Clicks the element of a selector as soon as it is there.
    pub(crate) fn click(&mut self, selector: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.until(&found);
        self.evaluate(&format!("{found}.click()"));
    }

    /// Enters a value in the field of a selector.
    pub(crate) fn fill(&mut self, selector: &str, value: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.until(&found);
        self.evaluate(&format!("{found}.value = {}", json!(value)));
    }

    /// Shows pages as on a phone whose screen is 375 pixels wide.
    pub(crate) fn be_a_phone(&mut self) {
        let screen = json!({ "width": 375, "height": 667, "deviceScaleFactor": 1, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", &screen);
    }

    /// Presses and releases a key: `Tab` or `Enter`.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = if key == "Tab" { (9, "") } else { (13, "\r") };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Presses the tabulator until the element of a selector has the focus.
    pub(crate) fn tab_to(&mut self, selector: &str) {
        /// More than any page has elements that take the focus.
        const MOST: usize = 60;
        let found = format!("document.querySelector({})", json!(selector));
        self.until(&found);
        for _ in 0..MOST {
            self.press("Tab");
            if self.evaluate(&format!("document.activeElement === {found}")) == true {
                return;
            }
        }
        panic!("the tabulator never gets to {selector}: {}", self.evaluate("document.body.innerText"));
    }

    /// Writes what the tab shows to a PNG file.
    pub(crate) fn write_screenshot(&mut self, path: &Path) {
        use base64::Engine;

        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut message = self.messages.recv_timeout(DEADLINE).expect("the browser answers");
            self.note_request(&message);
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
        }
    }

    fn note_request(&mut self, message: &Value) {
        if message["method"] == "Network.requestWillBeSent" {
            self.requested.push(message["params"]["request"]["url"].as_str().unwrap().to_owned());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Messages are JSON that ends with a zero byte.
fn read_messages(output: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let messages = BufReader::new(output).split(0).map_while(Result::ok);
        for message in messages.filter_map(|bytes| serde_json::from_slice(&bytes).ok()) {
            // Without a receiver the browser is no longer used.
            let _ = sender.send(message);
        }
    });
    receiver
}
