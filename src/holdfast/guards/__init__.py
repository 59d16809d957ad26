"""Guards: small objects that decide whether an attempt may be made. Each is told `now`; none waits or does I/O."""
