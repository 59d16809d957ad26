"""The MCP proxy over stdio and all that can go wrong with it: a scripted server, a raw client, real processes."""
