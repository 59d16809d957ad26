"""Servers and clients over streamable HTTP, and the gateway that serves several."""
