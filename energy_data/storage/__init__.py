"""Bytes behind a path: exact ranges, read-ahead, a bounded number of open files per process."""
