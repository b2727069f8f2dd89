//! One request to one of two servers, its faults, and the retries after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{BoxError, Gate, Settings};
use hapax_http::{IdempotencyLayer, RequestBody, Tenant};
use hapax_sim::rules;
use hapax_sweeps::{Interruption, Sweep};
use hapax_testkit::{Faulty, Process, StoreFault, TaskHandle, VirtualTime};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::service::{ChunkedBody, LIMIT, ServiceScript, serve};

pub(crate) const LEASE: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(300);

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestFaults {
    /// A fault, with the number of the store call that it happens to.
    pub(crate) fault: Option<(usize, StoreFault)>,
    /// An interruption of the first server, with the step of the world at which it happens.
    pub(crate) interruption: Option<(usize, Interruption)>,
    /// Whether the client retries only after all faults have ended.
    pub(crate) retries_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientResponse {
    status: StatusCode,
    replayed: bool,
    /// The name of the problem, if the response is a problem of Hapax.
    problem: Option<String>,
    body: Bytes,
}

/// Runs requests and counts them in a sweep.
pub(crate) trait RunRequest {
    /// Returns how many store calls and how many steps the run had.
    fn run(&mut self, script: ServiceScript, plan: &RequestFaults) -> (usize, usize);
}

impl RunRequest for Sweep {
    fn run(&mut self, script: ServiceScript, plan: &RequestFaults) -> (usize, usize) {
        let (calls, steps, violation) = run_request(script, plan);
        self.add_run(violation.map_or(Ok(()), Err));
        (calls, steps)
    }
}

struct World {
    time: VirtualTime,
    faulty: Arc<Faulty>,
    servers: Vec<(Arc<Process>, IdempotencyLayer)>,
    effects: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
    /// The first response of the service that a client response.
    answer: Option<ClientResponse>,
    /// Whether a server lost its tasks, and with them the outcome of the request.
    state_lost: bool,
    violation: Option<&'static str>,
    trace: Vec<String>,
}

impl World {
    fn new() -> Self {
        let time = VirtualTime::new(1);
        let server = time.process();
        let memory = Memory::with(Arc::clone(&server) as _, MemorySettings::default());
        let faulty = Faulty::new(Arc::new(memory), server, LEASE);
        let mut world = Self {
            time,
            faulty,
            servers: Vec::new(),
            effects: Arc::default(),
            runs: Arc::default(),
            answer: None,
            state_lost: false,
            violation: None,
            trace: Vec::new(),
        };
        world.start_server();
        world.start_server();
        world
    }

    fn start_server(&mut self) {
        let process = self.time.process();
        let mut settings = Settings::default();
        settings.policy.lease = LEASE;
        let builder = Gate::builder(Arc::clone(&self.faulty) as _, settings).runtime(Arc::clone(&process) as _);
        let gate = builder.build().expect("valid settings");
        let layer = IdempotencyLayer::new(gate).tenant("sweeps", Tenant::None).expect("a valid namespace");
        self.servers.push((process, layer.max_stored_body(LIMIT)));
    }

    /// Sends the request to a server.
    fn send(&self, server: usize, script: ServiceScript) -> TaskHandle<ClientResponse> {
        let (process, layer) = &self.servers[server];
        let (effects, runs) = (Arc::clone(&self.effects), Arc::clone(&self.runs));
        let service = layer.layer(service_fn(move |request: Request<RequestBody<ChunkedBody>>| {
            runs.fetch_add(1, Ordering::Relaxed);
            serve(script, request, Arc::clone(&effects))
        }));
        let request =
            Request::post("/charges").header("idempotency-key", "\"order-7\"").body(ChunkedBody::of(&["amount", "=7"]));
        let request = request.expect("a valid request");
        process.start(async move {
            let response: Result<_, BoxError> = service.oneshot(request).await;
            let (parts, body) = response.expect("the service answers").into_parts();
            let body = body.collect().await.expect("every body ends").to_bytes();
            let problem = parts.headers.get("content-type").is_some_and(|kind| kind == "application/problem+json");
            ClientResponse {
                status: parts.status,
                replayed: parts.headers.contains_key("idempotent-replayed"),
                problem: problem.then(|| name_of(&body)),
                body: if problem { Bytes::new() } else { body },
            }
        })
    }

    fn note(&mut self, line: String) {
        self.trace.push(format!("    {:>8.3} s  {line}", self.time.now().as_secs_f64()));
    }

    fn check(&mut self, holds: bool, rule: &'static str) {
        if !holds && self.violation.is_none() {
            self.note(format!("VIOLATION: {rule}"));
            self.violation = Some(rule);
        }
    }

    /// Checks a response against the history.
    fn check_response(&mut self, response: &ClientResponse) {
        let (effects, runs) = (self.effects.load(Ordering::Relaxed), self.runs.load(Ordering::Relaxed));
        self.note(format!("after {runs} runs and {effects} effects: {response:?}"));
        self.check(effects <= 1, rules::TWO_EFFECTS);
        match (&response.problem, self.answer.clone()) {
            (None, Some(before)) => {
                let same = (before.status, &before.body) == (response.status, &response.body);
                self.check(same, rules::DIFFERENT_ANSWERS);
                self.check(response.replayed, "a second answer is not marked as a replay");
            }
            (None, None) if response.status.is_success() || response.status == StatusCode::UNPROCESSABLE_ENTITY => {
                self.check(effects == 1 || !response.status.is_success(), "a success without an effect");
                self.answer = Some(response.clone());
            }
            (None, None) => {}
            (Some(problem), Some(_)) => {
                let answer_withheld = matches!(problem.as_str(), "not-replayable" | "store-unavailable");
                self.check(answer_withheld, rules::UNKNOWN_AFTER_ANSWER);
            }
            (Some(_), None) => {}
        }
    }

    fn request(&mut self, server: usize, script: ServiceScript) -> ClientResponse {
        let started = self.send(server, script);
        let response = self.time.run_until(WAIT, || started.output()).expect("every request gets a response");
        self.check_response(&response);
        response
    }
}

fn name_of(problem: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(problem).expect("problem details are JSON");
    let url = problem["type"].as_str().unwrap_or_default();
    url.rsplit('#').next().unwrap_or_default().into()
}

/// Returns the store calls, the steps, and the violation with its trace.
fn run_request(script: ServiceScript, plan: &RequestFaults) -> (usize, usize, Option<String>) {
    let mut world = World::new();
    if let Some((call, fault)) = plan.fault {
        world.faulty.inject(call, fault);
    }
    let (steps, crashed) = first_request(&mut world, script, plan.interruption);
    let servers = if crashed { [1, 1] } else { [0, 1] };
    if !plan.retries_late {
        for server in servers {
            world.request(server, ServiceScript::Creates);
        }
    }
    let calls = world.faulty.calls().len();
    world.faulty.heal();
    world.time.run_for(2 * LEASE);
    for server in servers {
        check_final_outcome(&mut world, server);
    }
    let World { violation, trace, .. } = world;
    let violation = violation.map(|rule| format!("{rule}\n  {script:?}, {plan:?}\n{}", trace.join("\n")));
    (calls, steps, violation)
}

/// Sends the request. Returns the steps until the response or the interruption, and whether the server crashed.
fn first_request(
    world: &mut World,
    script: ServiceScript,
    interruption: Option<(usize, Interruption)>,
) -> (usize, bool) {
    let started = world.send(0, script);
    let mut steps = 0;
    let response = world.time.run_until(WAIT, || {
        steps += 1;
        let is_due = interruption.is_some_and(|(step, _)| steps == step + 1);
        started.output().map(Some).or(is_due.then_some(None))
    });
    let response = response.expect("the request gets a response");
    if let Some(response) = response {
        world.check_response(&response);
        return (steps - 1, false);
    }
    let interruption = interruption.map(|(_, interruption)| interruption);
    world.note(format!("{interruption:?}"));
    world.state_lost = interruption != Some(Interruption::HangUp);
    match interruption {
        Some(Interruption::HangUp) | None => started.cancel(),
        Some(Interruption::Abort) => world.servers[0].0.abort_tasks(),
        Some(Interruption::Crash) => world.servers[0].0.crash(),
    }
    (steps - 1, interruption == Some(Interruption::Crash))
}

/// Repeats the request until its final outcome is known.
fn check_final_outcome(world: &mut World, server: usize) {
    for _ in 0..20 {
        let response = world.request(server, ServiceScript::Creates);
        match response.problem.as_deref() {
            None if response.status.is_success() || response.status.is_client_error() => return,
            Some("outcome-unknown") => {
                let has_reason = world.state_lost || world.runs.load(Ordering::Relaxed) > 0;
                return world.check(has_reason, rules::UNKNOWN_WITHOUT_REASON);
            }
            Some("not-replayable") => return,
            _ => world.time.run_for(Duration::from_secs(1)),
        }
    }
    world.check(false, rules::NOT_SETTLED);
}
