"""The service: an API to start, steer and look at jobs, metrics, live events, and the dashboard's files."""
