"""Files: local ones by byte range, stores by key, and caches."""
