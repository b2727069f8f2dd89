use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use futures_util::future::LocalBoxFuture;
use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Event, HandlerFailure};
use hapax_core::{BoxError, EventId, OperationId};

use super::setup::{Execute, LedgerSession};

/// A step of a handler.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Writes the effect of each operation.
    Write,
    /// Emits an event of each operation, with this many bytes.
    Emit(usize),
    /// The same in the order of commits.
    EmitOrdered(usize),
    /// Carries out a statement. An error fails the handler.
    Execute(&'static str),
    /// Carries out a statement, and ignores its error.
    Ignore(&'static str),
    /// Lets something else happen.
    Meanwhile,
    /// Ends with a final answer.
    Final,
    /// Fails.
    Fail,
    /// Panics.
    Panic,
}

/// The order in which an event is published.
#[derive(Clone, Copy, Debug)]
enum EventOrder {
    /// That of the rows of its key.
    Any,
    /// That of the commits.
    Commits,
}

/// Emits an event of the operation at this place.
type EmitEvent<'e> = dyn FnMut(usize, Event, EventOrder) -> hapax_core::Result<EventId> + 'e;

/// What happens while a handler runs.
pub(super) type Meanwhile = Box<dyn Fn() -> LocalBoxFuture<'static, ()>>;

/// A handler that runs in every database. Its answer says how many events the operation has emitted, and is another one
/// in every run.
#[derive(Default)]
pub struct Script {
    acts: Vec<Act>,
    meanwhile: Option<Meanwhile>,
    poison: HashSet<OperationId>,
    names_poison: bool,
    run: Cell<usize>,
    handled: RefCell<Vec<OperationId>>,
    emitted: RefCell<Vec<EventId>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("acts", &self.acts).finish_non_exhaustive()
    }
}

/// How a script failed.
#[derive(Debug)]
pub struct ScriptFailure {
    /// The place of the operation that failed, if the script names it.
    pub place: Option<usize>,
    /// The failure.
    pub failure: Failure<String>,
}

impl From<ScriptFailure> for HandlerFailure<String> {
    fn from(ScriptFailure { place, failure }: ScriptFailure) -> Self {
        match place {
            Some(place) => Self::of(place, failure),
            None => Self::of_any(failure),
        }
    }
}

impl<E: Into<BoxError>> From<E> for ScriptFailure {
    fn from(error: E) -> Self {
        Self { place: None, failure: Failure::from(error) }
    }
}

impl Script {
    pub(super) fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self { acts: acts.into_iter().collect(), ..Self::default() }
    }

    /// Writes its effect, and emits one event.
    pub(super) fn good() -> Self {
        Self::new([Act::Write, Act::Emit(1)])
    }

    pub(super) fn meanwhile(mut self, meanwhile: impl Fn() -> LocalBoxFuture<'static, ()> + 'static) -> Self {
        self.meanwhile = Some(Box::new(meanwhile));
        self
    }

    /// Fails after it has written its effects, if it runs one of these operations.
    pub(super) fn poisoned(mut self, poison: impl IntoIterator<Item = OperationId>, is_named: bool) -> Self {
        self.poison = poison.into_iter().collect();
        self.names_poison = is_named;
        self
    }

    /// How often it ran.
    pub(super) fn runs(&self) -> usize {
        self.run.get()
    }

    /// The operations that it ran, once for each run.
    pub(super) fn handled(&self) -> Vec<OperationId> {
        self.handled.borrow().clone()
    }

    /// The ids of the events that it emitted, once for each run.
    pub(super) fn emitted(&self) -> Vec<EventId> {
        self.emitted.borrow().clone()
    }

    /// Runs the script for the entries of a runner. Returns an answer for each.
    ///
    /// # Errors
    /// What the script says, or the error of a statement.
    ///
    /// # Panics
    /// If the script says so.
    pub async fn handle(&self, sql: &dyn Execute, entries: &mut [Entry]) -> Result<Vec<String>, ScriptFailure> {
        let namespace = entries[0].namespace().to_owned();
        let operations: Vec<_> = entries.iter().map(Entry::operation).collect();
        let mut emit = |place: usize, event, order| match order {
            EventOrder::Any => entries[place].emit(event),
            EventOrder::Commits => entries[place].emit_ordered(event),
        };
        self.act(sql, (&namespace, &operations), &mut emit).await
    }

    /// Runs the script for an entry that a session has claimed.
    pub(super) async fn handle_own(
        &self,
        session: &dyn LedgerSession,
        namespace: &str,
        operation: OperationId,
    ) -> Result<String, ScriptFailure> {
        let mut emit = |_, event, order| match order {
            EventOrder::Any => session.emit(operation, event),
            EventOrder::Commits => session.emit_ordered(operation, event),
        };
        let answers = self.act(session, (namespace, &[operation]), &mut emit).await;
        answers.map(|mut answers| answers.remove(0))
    }

    async fn act(
        &self,
        sql: &dyn Execute,
        (namespace, operations): (&str, &[OperationId]),
        emit: &mut EmitEvent<'_>,
    ) -> Result<Vec<String>, ScriptFailure> {
        self.run.set(self.run.get() + 1);
        self.handled.borrow_mut().extend(operations);
        let mut events = 0;
        for act in &self.acts {
            match act {
                Act::Write => {
                    for operation in operations {
                        sql.execute(&format!("insert into effect values ('{namespace}', '{operation}')")).await?;
                    }
                }
                Act::Emit(len) | Act::EmitOrdered(len) => {
                    let is_ordered = matches!(act, Act::EmitOrdered(_));
                    let order = if is_ordered { EventOrder::Commits } else { EventOrder::Any };
                    for place in 0..operations.len() {
                        let event = Event::new("transferred", vec![b'x'; *len]).ordered_by("account-7");
                        let id = emit(place, event, order)?;
                        self.emitted.borrow_mut().push(id);
                    }
                    events += 1;
                }
                Act::Execute(text) => sql.execute(text).await?,
                Act::Ignore(text) => drop(sql.execute(text).await),
                Act::Meanwhile => self.meanwhile.as_ref().expect("something happens meanwhile")().await,
                Act::Final => return Err(ScriptFailure { place: None, failure: Failure::finally("no".into()) }),
                Act::Fail => return Err("it cannot be run".into()),
                Act::Panic => panic!("the handler panics"),
            }
        }
        if let Some(place) = operations.iter().position(|operation| self.poison.contains(operation)) {
            let place = self.names_poison.then_some(place);
            return Err(ScriptFailure { place, failure: "one operation cannot be run".into() });
        }
        let run = self.run.get();
        Ok(operations.iter().map(|operation| format!("{events} events of {operation} in run {run}")).collect())
    }
}
