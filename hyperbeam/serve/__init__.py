"""Processes: children that the node supervises."""
