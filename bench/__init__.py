"""Holdfast beside its peers, in one run. `python -m bench` prints the tables; README.md says how to read them."""
