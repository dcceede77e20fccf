"""Storage: the formats that sinks write, and how each is read again."""
