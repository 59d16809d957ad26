"""`holdfast top`: the tools and runs of a store, live in a terminal. Needs the extra `tui`."""
