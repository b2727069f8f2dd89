use crate::postgres::schema::Schema;

/// The texts of the statements, with the tables in their schema. They are sent unnamed, so that no plan outlives the
/// state of the tables it was made for, and so that a pooler need not know them.
#[derive(Debug)]
pub(super) struct OutboxSql {
    pub(super) read: String,
    pub(super) mark: String,
    pub(super) mark_unlocked: String,
    pub(super) park: String,
    pub(super) set_aside: String,
    pub(super) drawn: String,
    pub(super) stamp: String,
    pub(super) counts: String,
    pub(super) parked: String,
    pub(super) find: String,
    pub(super) begin_resume: String,
    pub(super) reopen: String,
    pub(super) end_resume: String,
    pub(super) drop: String,
    pub(super) begin_republication: String,
    pub(super) republish: String,
    pub(super) now: String,
    pub(super) sweep: String,
    pub(super) facts: String,
}

impl OutboxSql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            read: schema.qualify(include_str!("read.sql")),
            mark: schema.qualify(include_str!("mark.sql")),
            mark_unlocked: schema.qualify(include_str!("mark_unlocked.sql")),
            park: schema.qualify(include_str!("park.sql")),
            set_aside: schema.qualify(include_str!("set_aside.sql")),
            drawn: schema.qualify(include_str!("drawn.sql")),
            stamp: schema.qualify(include_str!("stamp.sql")),
            counts: schema.qualify(include_str!("counts.sql")),
            parked: schema.qualify(include_str!("parked.sql")),
            find: schema.qualify(include_str!("find.sql")),
            begin_resume: schema.qualify(include_str!("begin_resume.sql")),
            reopen: schema.qualify(include_str!("reopen.sql")),
            end_resume: schema.qualify(include_str!("end_resume.sql")),
            drop: schema.qualify(include_str!("drop.sql")),
            begin_republication: schema.qualify(include_str!("begin_republication.sql")),
            republish: schema.qualify(include_str!("republish.sql")),
            now: schema.qualify(include_str!("now.sql")),
            sweep: schema.qualify(include_str!("sweep.sql")),
            facts: schema.qualify(include_str!("facts.sql")),
        }
    }
}
