"""Explanations of a crawl: URL history, request audit, and machine checks."""
