"""Task encoders, collation, and the datasets they build."""
