"""The torture: an agent with a durable run is killed, frozen, raced and cancelled, again and again, and then judged."""
