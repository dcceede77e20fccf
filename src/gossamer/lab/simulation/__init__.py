"""The deterministic simulation: the real engine and frontier in a world that follows from a seed."""
