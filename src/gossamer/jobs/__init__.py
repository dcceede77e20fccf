"""Jobs: one handle for running, stopped, and fleet jobs, and the code that runs, repairs, and deletes them."""
