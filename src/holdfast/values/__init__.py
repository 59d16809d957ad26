"""Arguments and results: what makes two calls the same, what is kept of a result, what may be shown of it."""
