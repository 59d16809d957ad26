"""The MCP proxy: any MCP server behind the guards, with no change to client or server.

    client ── front ── Session ── Upstream ── server

A front hears one kind of client: `stdio.front` lines on standard input, `http.serving` and `http.front` requests, each
an `Exchange`. What it hears goes to a `Session` (session), one client with one server. That reads the heads of frames
(frames), hands on nearly all of them as they came, and sends an answer to the `Channel` by which its request came. A
`tools/call` becomes a `Call` (calling), one more driver of a guarded call; `answers` says what the server's answer
means for the guards, `refusals` what the client is told where there is none. An `Upstream` reaches the server:
`stdio.upstream` a process that is kept alive, `http.upstream` HTTP for a client that knows nothing of it,
`http.passing` HTTP request by request, as its client has it. `wire` has these roles, and how a server's silence is
told. What all sessions with a server share is a `ProxiedServer` (server): what its tools say of themselves, which of
them are hidden, and its circuit.

`proxy` puts one of each together, for `holdfast wrap`. `http.gateway` has a site for each server, `child_site` or
`http_site`, and in it a `Conversation` for each client, which is its run. `clients` rewrites the settings of clients.
"""
