"""What other crawlers and archives left behind, read without running any of it, and taken over into a job."""
