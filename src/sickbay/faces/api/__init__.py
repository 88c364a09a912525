"""The HTTP API: one table of routes, from which routing, checks and the OpenAPI document follow."""
