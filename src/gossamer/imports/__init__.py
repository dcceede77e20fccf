"""Imports the state of other crawlers, URL lists, sitemaps, and archives into a job, without running their code."""
