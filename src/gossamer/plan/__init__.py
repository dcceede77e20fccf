"""What a crawl of any size takes, from measured figures: machines, memory, traffic, storage, money and patience."""
