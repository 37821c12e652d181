"""Remote objects as sparse local files, filled by one fetcher per node and cache folder."""
