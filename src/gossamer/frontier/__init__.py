"""The frontier: what is to be fetched, when, and by whom."""
