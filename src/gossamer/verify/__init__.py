"""Proof of a set-up: a crawl of a simulated web by real processes that are killed, judged by the web's own log."""
