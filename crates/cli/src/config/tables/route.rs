//! `[[route]]`: requests with a policy of their own.

use anyhow::{anyhow, bail};
use http::Method;

use crate::config::reader::file::RouteTable;
use crate::config::reader::origin::{FileLine, GivenValue};
use crate::config::reader::parse::{self, Protect};
use crate::config::reader::values::{Parse, Values, quote};
use crate::config::tables::gateway;
use crate::config::tables::policy::Rules;
use crate::gateway::routing::pattern::Pattern;

/// Requests with a policy of their own.
#[derive(Clone, Debug)]
pub(crate) struct ConfiguredRoute {
    pub(crate) methods: Vec<Method>,
    pub(crate) pattern: Pattern,
    pub(crate) protect: Protect,
    pub(crate) rules: Rules,
    /// The route as it is written in the file.
    pub(crate) table: RouteTable,
}

impl ConfiguredRoute {
    /// Reads a route. `protect` applies if the route has no `protect` of its own.
    fn read(table: RouteTable, values: &Values, protect: Protect) -> Result<Self, anyhow::Error> {
        let line = &table.line;
        let Some(pattern) = list(&table, "path", str::parse)?.into_iter().next() else {
            bail!("{line}: the route has no path; add one, for instance path = \"/charges/{{id}}\"");
        };
        let mut methods = list(&table, "method", parse::method)?;
        if methods.is_empty() {
            methods = gateway::methods(values)?;
        }
        let protect = list(&table, "protect", parse::protect)?.first().copied().unwrap_or(protect);
        let rules = Rules::read(&values.with(&table.overrides))?;
        let route = Self { methods, pattern, protect, rules, table };
        route.refuse_unused()?;
        Ok(route)
    }

    /// Refuses settings of protection on a route that is not protected, since they would have no effect.
    fn refuse_unused(&self) -> Result<(), anyhow::Error> {
        let needs_protection = |name: &&&str| !["method", "path", "protect"].contains(*name);
        let unused = self.table.fields.keys().filter(needs_protection).chain(self.table.overrides.keys()).next();
        match (self.protect, unused) {
            (Protect::Off, Some(unused)) => {
                bail!("{}: protect is off, so {unused} has no effect; remove one of them", self.table.line)
            }
            (Protect::Off, None) | (Protect::Required | Protect::Optional, _) => Ok(()),
        }
    }

    /// Returns the methods and the path, for lists of routes.
    pub(crate) fn name(&self) -> String {
        let methods: Vec<_> = self.methods.iter().map(Method::as_str).collect();
        format!("{} {}", methods.join(","), self.pattern)
    }

    fn line(&self) -> &FileLine {
        &self.table.line
    }
}

/// Reads all routes. The first route that matches a request applies, so a route that can never match is refused.
pub(crate) fn routes(
    tables: Vec<RouteTable>,
    values: &Values,
    protect: Protect,
) -> Result<Vec<ConfiguredRoute>, anyhow::Error> {
    let mut routes: Vec<ConfiguredRoute> = Vec::new();
    for table in tables {
        let line = table.line.clone();
        // An error about a flag or a default does not name the route in which it appeared.
        let with_line = |error: anyhow::Error| {
            let has_line = error.to_string().starts_with(&*line.file);
            if has_line { error } else { anyhow!("{line}: {error:#}") }
        };
        let route = ConfiguredRoute::read(table, values, protect).map_err(with_line)?;
        for earlier in &routes {
            refuse_hidden(earlier, &route)?;
        }
        routes.push(route);
    }
    Ok(routes)
}

/// Refuses a route that an earlier one hides.
fn refuse_hidden(earlier: &ConfiguredRoute, route: &ConfiguredRoute) -> Result<(), anyhow::Error> {
    // The earlier route may hide this one for some of its methods only; one is enough to refuse it.
    let hidden = route.methods.iter().find(|method| earlier.methods.contains(method));
    let Some(method) = hidden.filter(|_| earlier.pattern.covers(&route.pattern)) else { return Ok(()) };
    let (line, pattern, before) = (route.line(), &route.pattern, earlier.line());
    if route.pattern.covers(&earlier.pattern) {
        bail!("{line}: {method} {pattern} already has a route at {before}; merge the two");
    }
    bail!(
        "{line}: {method} {pattern} never matches, because {} at {before} comes first; move this route before it",
        earlier.pattern
    );
}

/// Parses the values of a field that only routes have.
fn list<T>(table: &RouteTable, name: &str, parse: Parse<T>) -> Result<Vec<T>, anyhow::Error> {
    let Some(GivenValue { texts, origin }) = table.fields.get(name) else { return Ok(Vec::new()) };
    texts.iter().map(|text| parse(text).map_err(|error| anyhow!("{origin}: {name}: {}", quote(text, &error)))).collect()
}
