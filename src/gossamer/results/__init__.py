"""Everything done with stored results: export, replay, SQL, comparison, and reports."""
