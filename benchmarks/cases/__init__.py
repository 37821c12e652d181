"""One file per case; its `CASE` says all about it."""
