"""Sinks: where pages and items are kept."""
