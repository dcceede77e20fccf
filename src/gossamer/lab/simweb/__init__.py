"""The simulated web: hosts and pages that follow from a seed, served over sockets and judged by their own log."""
