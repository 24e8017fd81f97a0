"""Seeing what a node does."""
