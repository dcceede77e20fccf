"""Tests of whole set-ups: simulated web, simulation in virtual time, verification, benchmarks, capacity plans."""
