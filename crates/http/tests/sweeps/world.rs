//! One request to one server of two, what goes wrong with it, and the retries after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{BoxError, Gate, Identity, Settings};
use hapax_http::{IdempotencyLayer, RequestBody, Tenant, TenantScope};
use hapax_testkit::{Fault, Faulty, Process, Started, VirtualTime};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::service::{Act, LIMIT, Pieces, serve};

pub(crate) const LEASE: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(300);

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mishap {
    /// A fault by call to the store.
    pub(crate) fault: Option<(usize, Fault)>,
    /// What becomes of the first server at a step of the world.
    pub(crate) blow: Option<(usize, Blow)>,
    /// Whether the client comes back only when everything is well again.
    pub(crate) patient: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The response future is dropped, as a server does when the client is gone.
    Hangup,
    /// All tasks of the server are dropped while it lives on.
    Abort,
    /// The server ends.
    Crash,
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    status: StatusCode,
    replayed: bool,
    /// The name of the problem, for one of Hapax's own.
    problem: Option<String>,
    body: Bytes,
}

/// How many points a run had, and the rule that it broke.
pub(crate) struct Covered {
    pub(crate) calls: usize,
    pub(crate) steps: usize,
    pub(crate) violation: Option<&'static str>,
    pub(crate) trace: Vec<String>,
}

struct World {
    time: VirtualTime,
    faulty: Arc<Faulty>,
    servers: Vec<(Arc<Process>, IdempotencyLayer)>,
    effects: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
    answer: Option<Got>,
    /// Whether a server lost its tasks, and what they knew.
    struck: bool,
    violation: Option<&'static str>,
    trace: Vec<String>,
}

impl World {
    fn new() -> Self {
        let time = VirtualTime::new(1);
        let server = time.process();
        let memory = Memory::new(Arc::clone(&server) as _, MemorySettings::default());
        let faulty = Faulty::over(Arc::new(memory), server, LEASE);
        let mut world = Self {
            time,
            faulty,
            servers: Vec::new(),
            effects: Arc::default(),
            runs: Arc::default(),
            answer: None,
            struck: false,
            violation: None,
            trace: Vec::new(),
        };
        world.open();
        world.open();
        world
    }

    fn open(&mut self) {
        let process = self.time.process();
        let mut settings = Settings::default();
        settings.policy.lease = LEASE;
        let builder = Gate::builder(Arc::clone(&self.faulty) as _, settings).runtime(Arc::clone(&process) as _);
        let gate = builder.build().expect("valid settings");
        let scope = TenantScope::new("sweeps", Tenant::None, Identity::plain()).expect("a valid scope");
        self.servers.push((process, IdempotencyLayer::new(gate).scope(scope).max_stored_body(LIMIT)));
    }

    /// Sends the request to a server.
    fn send(&self, server: usize, act: Act) -> Started<Got> {
        let (process, layer) = &self.servers[server];
        let (effects, runs) = (Arc::clone(&self.effects), Arc::clone(&self.runs));
        let service = layer.layer(service_fn(move |request: Request<RequestBody<Pieces>>| {
            runs.fetch_add(1, Ordering::Relaxed);
            serve(act, request, Arc::clone(&effects))
        }));
        let request =
            Request::post("/charges").header("idempotency-key", "\"order-7\"").body(Pieces::of(&["amount", "=7"]));
        let request = request.expect("a valid request");
        process.start(async move {
            let answered: Result<_, BoxError> = service.oneshot(request).await;
            let (parts, body) = answered.expect("the service answers").into_parts();
            let body = body.collect().await.expect("bodies have an end").to_bytes();
            let problem = parts.headers.get("content-type").is_some_and(|kind| kind == "application/problem+json");
            Got {
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

    fn hold_to(&mut self, holds: bool, rule: &'static str) {
        if !holds && self.violation.is_none() {
            self.note(format!("VIOLATION: {rule}"));
            self.violation = Some(rule);
        }
    }

    /// What a client got, held to what is known.
    fn got(&mut self, got: &Got) {
        let (effects, runs) = (self.effects.load(Ordering::Relaxed), self.runs.load(Ordering::Relaxed));
        self.note(format!("after {runs} runs and {effects} effects: {got:?}"));
        self.hold_to(effects <= 1, "two effects");
        match (&got.problem, self.answer.clone()) {
            (None, Some(before)) => {
                let same = (before.status, &before.body) == (got.status, &got.body);
                self.hold_to(same, "two clients got different answers");
                self.hold_to(got.replayed, "a second answer is not marked as a replay");
            }
            (None, None) if got.status.is_success() || got.status == StatusCode::UNPROCESSABLE_ENTITY => {
                self.hold_to(effects == 1 || !got.status.is_success(), "a success without an effect");
                self.answer = Some(got.clone());
            }
            (None, None) => {}
            (Some(problem), Some(_)) => {
                let kept_back = matches!(problem.as_str(), "not-replayable" | "store-unavailable");
                self.hold_to(kept_back, "an answer was given, and then its outcome is said to be open");
            }
            (Some(_), None) => {}
        }
    }

    fn ask(&mut self, server: usize, act: Act) -> Got {
        let started = self.send(server, act);
        let got = self.time.run_until(WAIT, || started.output()).expect("every request is answered");
        self.got(&got);
        got
    }
}

fn name_of(problem: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(problem).expect("problem details are JSON");
    let url = problem["type"].as_str().unwrap_or_default();
    url.rsplit('#').next().unwrap_or_default().into()
}

pub(crate) fn run(act: Act, mishap: &Mishap) -> Covered {
    let mut world = World::new();
    if let Some((call, fault)) = mishap.fault {
        world.faulty.meet(call, fault);
    }
    let (steps, crashed) = first_request(&mut world, act, mishap.blow);
    let servers = if crashed { [1, 1] } else { [0, 1] };
    if !mishap.patient {
        for server in servers {
            world.ask(server, Act::Creates);
        }
    }
    let calls = world.faulty.calls().len();
    world.faulty.heal();
    world.time.run_for(2 * LEASE);
    for server in servers {
        last_word(&mut world, server);
    }
    let World { violation, trace, .. } = world;
    Covered { calls, steps, violation, trace }
}

/// The request, until it is answered or struck; how many steps that took, and whether its server crashed.
fn first_request(world: &mut World, act: Act, blow: Option<(usize, Blow)>) -> (usize, bool) {
    let started = world.send(0, act);
    let mut steps = 0;
    let got = world.time.run_until(WAIT, || {
        steps += 1;
        let struck = blow.is_some_and(|(step, _)| steps == step + 1);
        started.output().map(Some).or(struck.then_some(None))
    });
    let got = got.expect("the request is answered");
    if let Some(got) = got {
        world.got(&got);
        return (steps - 1, false);
    }
    let blow = blow.map(|(_, blow)| blow);
    world.note(format!("{blow:?}"));
    world.struck = blow != Some(Blow::Hangup);
    match blow {
        Some(Blow::Hangup) | None => started.cancel(),
        Some(Blow::Abort) => world.servers[0].0.abort_tasks(),
        Some(Blow::Crash) => world.servers[0].0.crash(),
    }
    (steps - 1, blow == Some(Blow::Crash))
}

/// Repeats the request until its end is known.
fn last_word(world: &mut World, server: usize) {
    for _ in 0..20 {
        let got = world.ask(server, Act::Creates);
        match got.problem.as_deref() {
            None if got.status.is_success() || got.status.is_client_error() => return,
            Some("outcome-unknown") => {
                let struck = world.struck || world.runs.load(Ordering::Relaxed) > 0;
                return world.hold_to(struck, "the outcome is unknown though the service never ran");
            }
            Some("not-replayable") => return,
            _ => world.time.run_for(Duration::from_secs(1)),
        }
    }
    world.hold_to(false, "the end is not known after 20 tries");
}
