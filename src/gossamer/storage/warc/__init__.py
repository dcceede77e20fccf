"""WARC archives: sink, records, index, and reader."""
