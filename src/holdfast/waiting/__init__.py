"""Waiting, as a thread or as a task: for a `Wait`, for a plain function in a thread, for a time limit."""
