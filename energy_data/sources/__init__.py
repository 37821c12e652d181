"""What samples are read from, by index: one kind of data per module."""
