"""One guarded call: `drivers` wait and call the tool, around an `execution` and its attempts, which only decide."""
