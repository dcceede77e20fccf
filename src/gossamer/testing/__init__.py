"""What authors of crawls and backends test with: a simulated web and the conformance suites."""
