"""Gossamer: a web crawler that grows from a laptop to a fleet."""
