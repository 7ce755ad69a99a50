"""The HTTP server: routes, access, streams, workers and the dashboard."""
