"""Servers that are child processes, and clients at the other end of standard input and output."""
