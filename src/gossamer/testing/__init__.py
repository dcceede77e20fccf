"""Test tools for spiders and backends: a simulated web, conformance suites, real servers, and faulty networks."""
