"""The MCP proxy: any MCP server behind the guards, with no change to client or server.

    client ── front ── Session ── Upstream ── server

A front serves one kind of client: `stdio.front` reads lines from standard input, `http.serving` and `http.front` take
HTTP requests, each of them an `Exchange`. The front passes frames to a `Session` (session): one client with one server.
The session reads the heads of frames (frames), passes nearly all frames on unchanged, and sends each answer to the
`Channel` on which its request came. A `tools/call` becomes a `Call` (calling), one more driver of a guarded call;
`answers` decides what the server's answer means for the guards, `refusals` writes what the client is told if there is
no answer. All other requests are `Passed` (passed) until the server answers. An `Upstream` reaches the server:
`stdio.upstream` keeps a child process alive, `http.upstream` speaks HTTP for a client on stdio, `http.relay` makes one
HTTP request of each HTTP request of its client. `wire` defines these roles and the error for a server that gives no
answer. All sessions with one server share a `ProxiedServer` (server): the annotations of its tools, which tools are
hidden, and the server's circuit.

`proxy` puts one of each together for `holdfast wrap`. `http.gateway` has a site for each server, `child_site` or
`http_site`, and a site has a `Conversation` for each client, which is that client's run. `clients` rewrites the
configuration files of clients.
"""
