// The screen Servers: MCP servers behind proxies, with their handshake, restarts and what they say on stderr.

import { arrange, attr, fill, h, text } from "./dom.js";
import { ago, count, oneLine, plural, visible } from "./format.js";
import { filterControls, line as row, listing, nothing, show } from "./parts.js";
import { toTool } from "./routes.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ServerLine} ServerLine */
/** @typedef {import("./types.js").Screen} Screen */

const AT_EASE = new Set(["ready", "idle"]); // idle: behind a gateway, and no client uses it
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
 * @param {AbortSignal} gone
 * @returns {Screen}
 */
export function servers(app, route, gone) {
  const words = { placeholder: "Filter", label: "Filter servers by name or command", only: "Not ready only", found: () => plural(groups.size, "server") };
  const wanted = filterControls(draw, words, route.query, (filter) => app.note("servers", filter));
  const list = listing({ title: "Servers", label: "MCP servers", kind: "hosts", columns: COLUMNS, filters: wanted.filters });
  /** @type {Map<string, ReturnType<typeof group>>} */
  const groups = new Map();

  function draw() {
    const { shown } = app.live;
    const lines = shown.servers.filter(({ server }) => wanted.takes(`${server.name} ${server.target}`, !AT_EASE.has(server.state)));
    const keys = lines.map((line) => {
      const key = `${line.process} ${line.server.name}`;
      let made = groups.get(key);
      if (!made) groups.set(key, (made = group(app)));
      made.set(line);
      return key;
    });
    arrange(list.table, [list.head, ...keys.flatMap((key) => groups.get(key)?.root ?? [])]);
    for (const key of [...groups.keys()]) if (!keys.includes(key)) groups.delete(key);
    const ready = shown.servers.filter(({ server }) => server.state === "ready").length;
    text(list.summary, shown.servers.length ? `${plural(shown.servers.length, "server")} · ${count(ready)} ready` : "");
    list.say(lines.length ? null : nothing(shown.complete, shown.servers.length > 0, "server", hint));
  }

  app.live.watch((changes) => (changes.servers || changes.all) && draw(), gone);
  app.live.every(1000, () => groups.forEach((each) => each.tick()), gone);
  draw();
  return {
    title: "Servers",
    root: list.root,
    ...wanted,
    move(delta) {
      const links = [...list.table.querySelectorAll("a")];
      const at = links.findIndex((link) => link.closest("tbody")?.contains(document.activeElement));
      links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + delta))]?.focus();
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
