"""Questions about what a crawl did, and why."""
