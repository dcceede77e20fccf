"""The service (`gossamer serve`): REST API, metrics, live events, and the dashboard."""
