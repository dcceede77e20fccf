"""Test labs: simulated web, simulation in virtual time, end-to-end verification, benchmarks, and capacity plans."""
