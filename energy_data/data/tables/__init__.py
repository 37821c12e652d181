"""Tables: Parquet and Arrow files."""
