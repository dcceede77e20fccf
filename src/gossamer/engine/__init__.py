"""The engine: leases sites, fetches their pages, runs the spider, and commits the outcomes."""
