"""Checks what a node said, without a node: importable where no server runs."""
