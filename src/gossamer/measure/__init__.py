"""What crawling costs on this machine: whole crawls, frontiers alone, an archive; in CPU time and in bytes."""
