"""Middleware: layers of one shape around fetching and parsing, composed in list order."""
