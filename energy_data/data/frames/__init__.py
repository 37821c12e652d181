"""JSONL that is compressed in frames: zstd and gzip files of which a part can be read by itself."""
