"""The torture test: an agent with a durable run is killed, frozen, raced and cancelled repeatedly, and then judged."""
