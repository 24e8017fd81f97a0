"""Routes: rules from a path to the backends that answer it."""

from .table import Route, RouteNode, RouteTable, load_routes

__all__ = ["Route", "RouteNode", "RouteTable", "load_routes"]
