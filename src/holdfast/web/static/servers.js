// The screen Servers: MCP servers behind proxies, with their handshake, restarts and what they say on stderr.

import { arrange, attr, fill, h, on, text } from "./dom.js";
import { ago, count, oneLine, plural, visible } from "./format.js";
import { field, heading, heads, line as row, nothing, pressed, show, toggle } from "./parts.js";
import { toTool } from "./routes.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ServerLine} ServerLine */
/** @typedef {import("./types.js").Screen} Screen */

const AT_EASE = new Set(["ready", "idle"]); // idle: behind a gateway, and nobody has asked for it
const COLUMNS = [
  ["tool", "Server"],
  ["state", "State"],
  ["since", "Since"],
  ["shake", "Handshake"],
  ["restarts number", "Restarts"],
  ["pid number", "Process"],
  ["proxy", "Proxy"],
  ["last", "Last error"],
];

/**
 * @param {App} app
 * @param {import("./routes.js").Route} route
 * @returns {Screen}
 */
export function servers(app, route) {
  const search = field("Filter", "Filter servers by name or command", route.query.get("text") ?? "");
  const failing = toggle("Not ready only", () => failed());
  const summary = h("p", { class: "summary" });
  const head = heads(COLUMNS);
  const table = h("table", { class: "lines hosts", "aria-label": "MCP servers" }, head);
  const empty = h("div", { class: "empty", hidden: true });
  const root = h("section", { class: "screen" }, heading("Servers", summary, search, failing), h("div", { class: "scroll", tabindex: "-1" }, table, empty));
  /** @type {Map<string, ReturnType<typeof group>>} */
  const groups = new Map();
  let only = route.query.get("failing") === "1";

  function draw() {
    const { shown } = app.live;
    const wanted = search.value.trim().toLowerCase();
    const lines = shown.servers.filter(({ server }) => (!only || !AT_EASE.has(server.state)) && `${server.name} ${server.target}`.toLowerCase().includes(wanted));
    const keys = lines.map((line) => {
      const key = `${line.process} ${line.server.name}`;
      let made = groups.get(key);
      if (!made) groups.set(key, (made = group(app)));
      made.set(line);
      return key;
    });
    arrange(table, [head, ...keys.flatMap((key) => groups.get(key)?.root ?? [])]);
    for (const key of [...groups.keys()]) if (!keys.includes(key)) groups.delete(key);
    const ready = shown.servers.filter(({ server }) => server.state === "ready").length;
    text(summary, shown.servers.length ? `${plural(shown.servers.length, "server")} · ${count(ready)} ready` : "");
    pressed(failing, only);
    attr(table, "hidden", lines.length === 0);
    attr(empty, "hidden", lines.length > 0);
    if (!lines.length) fill(empty, ...nothing(shown.complete, shown.servers.length > 0, "server", hint));
  }

  function failed() {
    only = !only;
    change();
  }

  function change() {
    draw();
    app.note("servers", { text: search.value.trim(), failing: only ? "1" : "" });
  }

  on(search, "input", change);
  const stop = app.live.watch((changes) => (changes.servers || changes.all) && draw());
  const timer = setInterval(() => !app.live.paused && groups.forEach((each) => each.tick()), 1000);
  draw();
  return {
    title: "Servers",
    root,
    search,
    failed,
    move(delta) {
      const links = [...table.querySelectorAll("a")];
      const at = links.findIndex((link) => link.closest("tbody")?.contains(document.activeElement));
      links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + delta))]?.focus();
    },
    back() {
      if (!search.value && !only) return false;
      search.value = "";
      only = false;
      change();
      return true;
    },
    leave() {
      stop();
      clearInterval(timer);
    },
  };
}

/** @param {App} app */
function group(app) {
  /** @type {ServerLine | null} */
  let line = null;
  const name = h("bdi");
  const link = h("a", { class: "to", title: "Its circuit and its calls" }, name);
  const target = h("bdi", { class: "target cut" });
  const state = h("span", { class: "state" });
  const [since, shake, restarts, pid, proxy] = [h("td"), h("td"), h("td"), h("td"), h("td")];
  const error = h("bdi", { class: "cut" });
  const cells = [h("th", { scope: "row" }, link, target), h("td", {}, state), since, shake, restarts, pid, proxy, h("td", {}, h("span", { class: "oneline" }, error))];
  const said = h("pre", { class: "stderr", tabindex: "0" });
  const summary = h("summary");
  const box = h("details", {}, summary, said);
  const more = h("tr", { class: "more" }, h("td", { colspan: COLUMNS.length }, box));
  const root = h("tbody", {}, row(COLUMNS, cells), more);

  function tick() {
    if (line) text(since, ago(line.server.since_ms, app.live.now()));
  }

  return {
    root,
    tick,
    /** @param {ServerLine} next */
    set(next) {
      line = next;
      const { server } = next;
      const info = server.server_info ?? {};
      text(name, oneLine(server.name, 200));
      attr(link, "href", toTool(server.name));
      text(target, oneLine(server.target));
      attr(target, "title", oneLine(server.target, 500));
      show(state, server.state);
      const who = [info.name, info.version].filter(Boolean).join(" ");
      fill(shake, server.protocol === null ? "–" : h("bdi", {}, oneLine([who, `MCP ${server.protocol}`].filter(Boolean).join(" · "), 120)));
      text(restarts, count(server.restarts));
      attr(restarts, "class", `restarts number${server.restarts ? " some" : ""}`);
      text(pid, server.pid === null ? "–" : String(server.pid));
      fill(proxy, h("span", {}, h("bdi", {}, oneLine(next.proxy, 80)), ` ${next.proxy_pid} on `, h("bdi", {}, oneLine(next.host, 80))));
      text(error, server.last_error === null ? "" : oneLine(server.last_error));
      attr(error, "title", server.last_error === null ? null : oneLine(server.last_error, 500));
      text(summary, server.stderr.length ? `${plural(server.stderr.length, "line")} of stderr` : "nothing on stderr");
      attr(said, "aria-label", `The last lines of stderr of ${oneLine(server.name, 200)}`);
      text(said, visible(server.stderr.join("\n")));
      attr(more, "hidden", server.stderr.length === 0);
      if (server.state === "failed") box.open = true;
      tick();
    },
  };
}

function hint() {
  return [
    h("p", {}, "No MCP server is behind Holdfast now."),
    h("p", {}, "Put one there, or all that a client has:"),
    h("pre", {}, "holdfast wrap -- npx -y @modelcontextprotocol/server-everything\nholdfast install ~/.cursor/mcp.json"),
  ];
}
