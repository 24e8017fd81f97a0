"""Processes: the workers of a node, and children that it supervises."""
