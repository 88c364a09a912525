"""The table of all routes."""

from sickbay.faces.api import checks, events, fleet, held, incidents, index, jobs, metrics, nodes, safety, tokens

ROUTES = (
    *index.ROUTES,
    *nodes.ROUTES,
    *metrics.ROUTES,
    *jobs.ROUTES,
    *incidents.ROUTES,
    *checks.ROUTES,
    *fleet.ROUTES,
    *safety.ROUTES,
    *tokens.ROUTES,
    *events.ROUTES,
    *held.ROUTES,
)
