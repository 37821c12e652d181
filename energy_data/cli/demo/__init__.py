"""`energy-data demo`: real data, a blended stream, and a resume that is compared byte by byte."""
