"""A simulated web on loopback, seeded and cheap, and the judgement of a crawl from its log."""
