"""The settings files of MCP clients: read, and rewritten so that their servers go through Holdfast."""
