//! The states and steps in the form that the checker explores, and the invariants.

use std::fmt::Write;

use hapax_core::outbox::RowState;
use stateright::{Model, Property};

use crate::invariant::Invariant;
use crate::outbox::action::EventAction;
use crate::outbox::setting::OutboxSpace;
use crate::outbox::world::{EventWorld, NumberSet};
use crate::reach::Explored;

/// Returns whether an invariant holds in a state.
type OutboxCheck = fn(&OutboxSpace, &EventWorld) -> bool;

const ALWAYS: &[(Invariant, OutboxCheck)] = &[
    (Invariant::NoGhostEvent, |_, world| world.broken != Some(Invariant::NoGhostEvent)),
    (Invariant::EventsInOrder, |_, world| world.broken != Some(Invariant::EventsInOrder)),
    (Invariant::SameEventId, |_, world| world.broken != Some(Invariant::SameEventId)),
    (Invariant::OneEffectOfEvent, |_, world| world.broken != Some(Invariant::OneEffectOfEvent)),
    (Invariant::OnlyOpenRowsAreMarked, |_, world| world.broken != Some(Invariant::OnlyOpenRowsAreMarked)),
];

impl Model for OutboxSpace {
    type State = EventWorld;
    type Action = EventAction;

    fn init_states(&self) -> Vec<EventWorld> {
        vec![EventWorld::new(self)]
    }

    fn actions(&self, world: &EventWorld, actions: &mut Vec<EventAction>) {
        // A broken invariant ends the exploration of this way.
        if world.broken.is_some() {
            return;
        }
        world.collect_writer_actions(self, actions);
        world.collect_claim_actions(self, actions);
        world.collect_read_actions(self, actions);
        world.collect_publish_actions(self, actions);
        world.collect_operator_actions(self, actions);
        world.collect_broker_actions(self, actions);
    }

    fn next_state(&self, world: &EventWorld, action: EventAction) -> Option<EventWorld> {
        let mut next = world.clone();
        next.apply(self, action);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        ALWAYS.iter().map(|(invariant, holds)| Property::always(invariant.sentence(), *holds)).collect()
    }
}

impl Explored for OutboxSpace {
    const REST: Invariant = Invariant::EventsArrive;

    fn broken_invariant(&self, world: &EventWorld) -> Option<Invariant> {
        world.broken
    }

    /// All transactions have ended, each committed event had its effect and is marked, or its key is parked.
    fn is_at_rest(&self, world: &EventWorld) -> bool {
        self.rows().all(|row| {
            let is_parked = world.parked[self.key(row)].is_some_and(|parked| !parked.is_being_resumed);
            match world.transactions[row].committed {
                None => false,
                Some(false) => true,
                Some(true) => match world.rows[row] {
                    Some(RowState::Open) => false,
                    Some(RowState::Aside) => is_parked,
                    Some(RowState::Dropped) => true,
                    Some(RowState::Published) | None => world.broker.effects[row] > 0,
                },
            }
        })
    }

    fn describe(&self, way: &[EventAction]) -> String {
        let (mut world, mut text) = (EventWorld::new(self), String::new());
        for (step, action) in (1..).zip(way) {
            world.apply(self, *action);
            let _ = writeln!(text, "{step:>4}  {:<62} {}", action.to_string(), describe_rows(self, &world));
        }
        text
    }
}

/// The id and state of each row, and how often its event had an effect.
fn describe_rows(space: &OutboxSpace, world: &EventWorld) -> String {
    let row = |row: usize| match (world.id(row), world.rows[row]) {
        (0, _) => "-".to_owned(),
        (id, None) => format!("{id} none"),
        (id, Some(state)) => format!("{id} {}, {} effects", state.as_str(), world.broker.effects[row]),
    };
    space.rows().map(row).collect::<Vec<_>>().join(" | ")
}

impl EventWorld {
    fn apply(&mut self, space: &OutboxSpace, action: EventAction) {
        use EventAction as A;
        match action {
            A::Begin(row) => self.begin(row),
            A::Draw(row) => self.draw(row),
            A::Commit(row) => self.end(row, true),
            A::RollBack(row) => self.end(row, false),
            A::Claim(relay) => self.claim(relay),
            A::Renew(_) => self.claim.has_lapsed = false,
            A::Lapse => self.lapse(),
            A::NoticeLoss(relay) => self.relays[relay].drop_bucket(),
            A::GiveBack(relay) => self.give_back(relay),
            A::Crash(relay) => self.crash(space, relay),
            A::ReadDrawn(relay) => self.read_drawn(space, relay),
            A::ReadStamps(relay) => self.read_stamps(relay),
            A::Read(relay) => self.read(space, relay),
            A::TakeRead(relay) => self.take_read(space, relay),
            A::GoBack(relay) => self.go_back(space, relay),
            A::Start(relay, row) => self.start(space, relay, row),
            A::Publish(relay, row) => self.publish(space, relay, row),
            A::Refuse(relay, row) => self.refuse(space, relay, row),
            A::LosePublication(relay, row) => self.fail_publication(relay, row),
            A::LoseConfirmation(relay, row) => {
                self.arrive(space, row);
                self.fail_publication(relay, row);
            }
            A::DelayPublication(relay, row) => {
                self.late_publications.insert(row);
                self.fail_publication(relay, row);
            }
            A::ArriveLate(row) => {
                self.late_publications.remove(row);
                self.arrive(space, row);
            }
            A::LoseLate(row) => self.late_publications.remove(row),
            A::StartMark(relay) => self.start_mark(relay),
            A::Mark(relay) => self.finish_mark(space, relay),
            A::LoseMark(relay) => self.fail_mark(space, relay, false),
            A::LoseMarkReply(relay) => self.fail_mark(space, relay, true),
            A::MarkLate => self.mark_late(space),
            A::Park(relay, row) => self.park(space, relay, row, true),
            A::LoseParkReply(relay, row) => self.park(space, relay, row, false),
            A::SetAside(relay) => self.set_aside(space, relay),
            A::BeginResume(key) => self.begin_resume(key),
            A::Reopen(key) => self.reopen(space, key),
            A::EndResume(key) => self.end_resume(key),
            A::Drop(key) => self.drop_refused(key),
            A::Republish => self.republish(space),
            A::ReopenPublished => self.reopen_published(space),
            A::Sweep(row) => self.rows[row] = None,
            A::ForgetIds => self.broker.known = NumberSet::default(),
            A::Consume => self.consume(space),
            A::LoseAll => self.lose_all(),
            A::Keep => self.keep(),
        }
    }
}
