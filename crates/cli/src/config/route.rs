use anyhow::{anyhow, bail};
use hapax::http::StatusOutcomes;
use http::Method;

use crate::config::policy::Rules;
use crate::config::reader::file::RouteTable;
use crate::config::reader::origin::{FileLine, GivenValue};
use crate::config::reader::parse::{self, Protect};
use crate::config::reader::values::{Read, Values};
use crate::gateway::routing::pattern::Pattern;

/// Requests with a policy of their own.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) methods: Vec<Method>,
    pub(crate) pattern: Pattern,
    pub(crate) protect: Protect,
    pub(crate) rules: Rules,
    pub(crate) outcomes: StatusOutcomes,
    /// As it was written.
    pub(crate) table: RouteTable,
}

impl Route {
    /// `protect` is what holds where the route does not say.
    fn read(table: RouteTable, values: &Values, protect: Protect) -> Result<Self, anyhow::Error> {
        let line = &table.line;
        let Some(pattern) = list(&table, "path", str::parse)?.into_iter().next() else {
            bail!("{line}: the route has no path; write path = \"/charges/{{id}}\" for instance");
        };
        let mut methods = list(&table, "method", parse::method)?;
        if methods.is_empty() {
            methods = vec![Method::POST, Method::PATCH];
        }
        let protect = list(&table, "protect", parse::protect)?.first().copied().unwrap_or(protect);
        let rules = Rules::read(&values.with(&table.own))?;
        let outcomes = outcomes(&table)?;
        let route = Self { methods, pattern, protect, rules, outcomes, table };
        route.agrees()?;
        Ok(route)
    }

    /// A route that is off has no use for what it says of protection.
    fn agrees(&self) -> Result<(), anyhow::Error> {
        let of_protection = |name: &&&str| !["method", "path", "protect"].contains(*name);
        let idle = self.table.of_routes.keys().filter(of_protection).chain(self.table.own.keys()).next();
        match (self.protect, idle) {
            (Protect::Off, Some(idle)) => {
                bail!("{}: protect is off, so that {idle} has no effect; leave one of the two out", self.table.line)
            }
            (Protect::Off, None) | (Protect::Required | Protect::Optional, _) => Ok(()),
        }
    }

    /// What it is called where routes are listed.
    pub(crate) fn name(&self) -> String {
        let methods: Vec<_> = self.methods.iter().map(Method::as_str).collect();
        format!("{} {}", methods.join(","), self.pattern)
    }

    fn line(&self) -> &FileLine {
        &self.table.line
    }
}

/// All routes, in their order. The first one that is named for a request holds, so that none may hide a later one.
pub(crate) fn routes(tables: Vec<RouteTable>, values: &Values, protect: Protect) -> Result<Vec<Route>, anyhow::Error> {
    let mut routes: Vec<Route> = Vec::new();
    for table in tables {
        let line = table.line.clone();
        // A value that the route did not give itself, a flag for instance, is named by its own origin.
        let named = |error: anyhow::Error| {
            let is_placed = error.to_string().starts_with(&*line.file);
            if is_placed { error } else { anyhow!("{line}: {error:#}") }
        };
        let route = Route::read(table, values, protect).map_err(named)?;
        for earlier in &routes {
            refuse_hidden(earlier, &route)?;
        }
        routes.push(route);
    }
    Ok(routes)
}

fn refuse_hidden(earlier: &Route, route: &Route) -> Result<(), anyhow::Error> {
    let hidden = route.methods.iter().find(|method| earlier.methods.contains(method));
    let Some(method) = hidden.filter(|_| earlier.pattern.covers(&route.pattern)) else { return Ok(()) };
    let (line, pattern, before) = (route.line(), &route.pattern, earlier.line());
    if route.pattern.covers(&earlier.pattern) {
        bail!("{line}: {method} {pattern} has a route already, {before}; make them one");
    }
    bail!(
        "{line}: {method} {pattern} is never reached, since {before} has {} and comes first; move this one before it",
        earlier.pattern
    );
}

fn outcomes(table: &RouteTable) -> Result<StatusOutcomes, anyhow::Error> {
    let mut outcomes = StatusOutcomes::default();
    let mut named: Vec<(u16, &str)> = Vec::new();
    for (name, mean) in MEANINGS {
        let statuses = list(table, name, parse::status)?;
        if let Some((status, other)) = named.iter().find(|(status, _)| statuses.contains(status)) {
            let origin = &table.of_routes[name].origin;
            bail!("{origin}: {status} is in {other} and in {name}; it can mean one of the two");
        }
        named.extend(statuses.iter().map(|status| (*status, *name)));
        outcomes = mean(outcomes, statuses);
    }
    Ok(outcomes)
}

type Mean = fn(StatusOutcomes, Vec<u16>) -> StatusOutcomes;

/// The lists in which a route says what its statuses mean.
const MEANINGS: &[(&str, Mean)] = &[
    ("applied", StatusOutcomes::applied),
    ("not-applied", StatusOutcomes::not_applied),
    ("final", StatusOutcomes::finally),
    ("unknown", StatusOutcomes::unknown),
];

/// What a route says under a name that only routes have.
fn list<T>(table: &RouteTable, name: &str, read: Read<T>) -> Result<Vec<T>, anyhow::Error> {
    let Some(GivenValue { texts, origin }) = table.of_routes.get(name) else { return Ok(Vec::new()) };
    texts.iter().map(|text| read(text).map_err(|error| anyhow!("{origin}: {name}: {error:#}"))).collect()
}
