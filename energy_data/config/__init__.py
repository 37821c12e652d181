"""Metadatasets: YAML that says which datasets a run draws from, and in which proportions.

A metadataset is data. Loading one builds plain values, checks them against the table of kinds
(`kinds`), follows nested files (`load`), and compiles one split to specs (`compile`). It never
runs code, and it reports every error in all its files together, each with its place.

    metadataset = load("meta.yaml")
    spec = compile_split(metadataset, "train", open_source=open_source)
"""
