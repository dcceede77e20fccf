"""The engine: leases sites, fetches their pages, runs the spider, and commits what came of it."""
