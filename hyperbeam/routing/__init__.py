"""Routes: rules from a path to the backends that answer it."""

from .files import routes_file
from .reading import load_routes, parse_routes
from .strategy import Ask
from .table import HealthCheck, Route, RouteLimits, RouteNode, RouteTable, Timeouts

__all__ = [
    "Ask",
    "HealthCheck",
    "Route",
    "RouteLimits",
    "RouteNode",
    "RouteTable",
    "Timeouts",
    "load_routes",
    "parse_routes",
    "routes_file",
]
