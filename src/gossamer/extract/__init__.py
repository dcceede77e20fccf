"""Extraction: from the bytes of a page to its text, links, requests, and items."""
