//! The routes: which layer handles a request, and the page that publishes their contract.

pub(crate) mod pattern;

use bytes::Bytes;
use hapax::http::{IdempotencyLayer, PAGE, PolicyPage};
use http::{Method, Request, Response};

use crate::gateway::ingress::refusal::ambiguous_path;
use crate::gateway::routing::pattern::{PathMatch, Pattern, RequestPath};

/// The configured routes in their order, the layer for all other requests, and the page about both.
#[derive(Debug)]
pub(crate) struct Routes {
    routes: Vec<RouteLayer>,
    default: IdempotencyLayer,
    page: PolicyPage,
}

/// The layer that handles requests of these methods to these paths.
#[derive(Clone, Debug)]
pub(crate) struct RouteLayer {
    pub(crate) methods: Vec<Method>,
    pub(crate) pattern: Pattern,
    /// The layer of an unprotected route protects no method, so that requests stream through it.
    pub(crate) layer: IdempotencyLayer,
    pub(crate) is_protected: bool,
}

/// How a request is handled.
#[derive(Debug)]
pub(crate) enum Routed<'a> {
    /// By this layer.
    Layer(&'a IdempotencyLayer),
    /// With this page, or the answer to a preflight.
    Page(Response<Bytes>),
    /// It is refused with this response.
    Refusal(Response<Bytes>),
}

impl Routes {
    pub(crate) fn new(routes: Vec<RouteLayer>, default: IdempotencyLayer) -> Self {
        let page = routes.iter().fold(default.page(), |page, route| {
            let path = route.pattern.to_string();
            if route.is_protected {
                page.route(&path, &route.layer)
            } else {
                page.unprotected_route(&path, &route.methods)
            }
        });
        Self { routes, default, page }
    }

    pub(crate) fn route<B>(&self, request: &Request<B>) -> Routed<'_> {
        let path = request.uri().path();
        if path == PAGE && matches!(*request.method(), Method::GET | Method::HEAD) {
            return Routed::Page(self.page.response(request.headers()));
        }
        self.layer(request.method(), path).map_or_else(|| Routed::Refusal(ambiguous_path()), Routed::Layer)
    }

    /// Returns the layer of the first route that matches, or the default layer. None if the path is ambiguous: it has
    /// two readings, and at least one of them matches a route.
    fn layer(&self, method: &Method, path: &str) -> Option<&IdempotencyLayer> {
        let mut routes = self.routes.iter().filter(|route| route.methods.contains(method)).peekable();
        if routes.peek().is_some() {
            let path = RequestPath::parse(path);
            for route in routes {
                match path.compare(&route.pattern) {
                    PathMatch::Matches => return Some(&route.layer),
                    PathMatch::Ambiguous => return None,
                    PathMatch::Differs => {}
                }
            }
        }
        Some(&self.default)
    }
}
