"""Jobs: one handle for a job that runs here, rests here, or is on a fleet; and what it takes to run one."""
