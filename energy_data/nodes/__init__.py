"""Inner nodes, one kind per file: a spec, and the node or the order it builds."""
