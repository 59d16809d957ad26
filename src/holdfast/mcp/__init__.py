"""The MCP proxy: any MCP server behind the guards, with no change to client or server."""
