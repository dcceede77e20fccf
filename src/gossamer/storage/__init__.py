"""Storage: the formats that sinks write, and their readers."""
