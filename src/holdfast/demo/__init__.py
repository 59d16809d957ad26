"""The demo, in four scenes: flaky tools with and without guards, kill -9, a broken MCP server, the dashboard."""
