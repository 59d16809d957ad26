// The screen Tools: one row per tool, the worst first.

import { attr, fill, h, text } from "./dom.js";
import { meter, sparkline } from "./draw.js";
import { ago, count, countdown, oneLine, percent, plural, rate, span } from "./format.js";
import { tone } from "./icons.js";
import { orderButtons, orderKeys } from "./orders.js";
import { filterControls, line as cellsOf, listing, nothing, show } from "./parts.js";
import { worstFirst } from "./picture.js";
import { Rows } from "./rows.js";
import { toTool } from "./routes.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ToolLine} ToolLine */
/** @typedef {import("./types.js").Screen} Screen */

const COLUMNS = [
  ["tool", "Tool"],
  ["state", "Circuit"],
  ["speed", "Calls/s"],
  ["errors", "Errors, to the trip line"],
  ["p50 number", "p50"],
  ["p95 number", "p95"],
  ["p99 number", "p99"],
  ["flight number", "In flight"],
  ["rate number", "Rate"],
  ["last", "Last error"],
  ["orders", "Hold"],
];

/**
 * @param {App} app
 * @param {import("./routes.js").Route} route
 * @param {AbortSignal} gone
 * @returns {Screen}
 */
export function tools(app, route, gone) {
  const words = { placeholder: "Filter", label: "Filter tools by name", only: "Failing only", found: () => plural(rows.items.length, "tool") };
  const wanted = filterControls(draw, words, route.query, (filter) => app.note("tools", filter));
  const list = listing({ title: "Tools", label: "Tools, the worst first", kind: "toolbox", columns: COLUMNS, filters: wanted.filters });
  const rows = new Rows({ ...list, key: (/** @type {ToolLine} */ line) => line.name, make: () => row(app), gone });

  function draw() {
    const { shown } = app.live;
    const lines = worstFirst(shown.tools.values()).filter((line) => wanted.takes(line.name, isFailing(line)));
    list.say(lines.length ? null : nothing(shown.complete, shown.tools.size > 0, "tool", hint));
    rows.set(lines);
    sum();
  }

  function sum() {
    text(list.summary, summed([...app.live.shown.tools.values()], app));
  }

  app.live.watch((changes) => (changes.tools.size || changes.all) && draw(), gone);
  app.live.every(500, () => { rows.refresh(); sum(); }, gone);
  draw();
  return {
    title: "Tools",
    root: list.root,
    ...wanted,
    move: (delta) => rows.move(delta),
    actions: orderKeys(app, () => rows.focused()?.name),
  };
}

/** @param {ToolLine} line */
function isFailing(line) {
  return line.state === "open" || line.state === "half_open" || (line.error_rate ?? 0) > 0;
}

/**
 * How far a tool is from opening its circuit: the share that has failed, and the line at which it opens.
 *
 * @param {ToolLine} line
 */
export function trip(line) {
  const worst = line.processes.map((each) => each.tool).sort((a, b) => b.failure_count - a.failure_count)[0];
  const { failure_rate: limit } = line;
  const threshold = worst?.failure_threshold ?? null;
  const inRow = worst && threshold ? worst.failure_count / threshold : 0;
  const share = line.error_rate ?? 0;
  if (line.state === "open") return { share: 1, trip: 0.8, title: "it is open" };
  if (limit !== null && share / limit >= inRow) {
    return { share, trip: limit, title: `${percent(share)} failed; opens at ${percent(limit)}` };
  }
  if (!worst || !threshold) return { share, trip: null, title: "no line at which it opens" };
  return { share: inRow * 0.8, trip: 0.8, title: `${worst.failure_count} of ${threshold} failures that open it` };
}

/**
 * The words beside a circuit: when an open one lets a probe through, or that its fleet is away.
 *
 * @param {ToolLine} line
 * @param {number} since milliseconds since the last news of it
 */
export function beside(line, since) {
  const left = line.remaining_ms === null ? 0 : line.remaining_ms - since;
  if (left > 0) return `probe in ${countdown(left)}`;
  if (line.state === "open" && (line.remaining_ms !== null || !line.refuses)) return "next call probes";
  return line.alone ? "fleet away" : "";
}

/**
 * Calls a second that a limiter lets through, and its full rate if it has slowed down.
 *
 * @param {ToolLine} line
 */
export function pace(line) {
  if (line.rate === null) return "–";
  return `${rate(line.rate)}${isCut(line) ? ` of ${rate(line.full_rate)}` : ""}/s`;
}

/** @param {ToolLine} line */
function isCut(line) {
  return line.rate !== null && line.full_rate !== null && line.rate < line.full_rate;
}

/** @param {App} app */
function row(app) {
  /** @type {ToolLine | null} */
  let line = null;
  const name = h("bdi");
  const link = h("a", { class: "to" }, name);
  const badges = h("span", { class: "badges" });
  const state = h("span", { class: "state" });
  const wait = h("span", { class: "wait" });
  const spark = sparkline();
  const speed = h("span", { class: "figure" });
  const share = h("span", { class: "figure" });
  const bar = meter();
  const toTrip = h("span", { class: "unseen" });
  const [p50, p95, p99, flight, speedLimit] = [h("td"), h("td"), h("td"), h("td"), h("td")];
  const error = h("bdi", { class: "cut" });
  const age = h("span", { class: "age" });
  const orders = orderButtons(app, () => line?.name ?? "");
  const cells = [
    h("th", { scope: "row" }, h("span", { class: "named" }, link, badges)),
    h("td", {}, state, wait),
    h("td", {}, speed, h("span", { class: "unit" }, "calls/s"), spark.root),
    h("td", {}, share, bar.root, toTrip),
    p50, p95, p99, flight, speedLimit,
    h("td", {}, h("span", { class: "oneline" }, error, age)),
    h("td", {}, orders.root),
  ];
  const root = cellsOf(COLUMNS, cells);

  function tick() {
    if (!line) return;
    spark.set(app.live.samples.get(line.name) ?? []);
    text(speed, rate(app.live.speed(line)));
    text(wait, beside(line, app.live.since(line.name)));
    text(age, line.last_error_at_ms === null ? "" : ago(line.last_error_at_ms, app.live.now()));
  }

  /** @param {ToolLine} next */
  function draw(next) {
    const turned = line !== null && line.state !== next.state;
    line = next;
    text(name, oneLine(next.name, 200));
    attr(link, "href", toTool(next.name));
    attr(link, "title", oneLine(next.name, 500));
    fill(badges, ...labels(next));
    attr(root, "class", `${tone(next.state)}${turned ? " turned" : ""}${next.refuses ? " refuses" : ""}`);
    if (state.dataset.of !== next.state) {
      show(state, next.state);
      state.dataset.of = next.state;
    }
    const far = trip(next);
    text(share, percent(next.error_rate));
    bar.set(far.share, far.trip);
    attr(bar.root, "title", far.title);
    text(toTrip, `, ${far.title}`);
    figure(p50, span(next.p50_ms));
    figure(p95, span(next.p95_ms));
    figure(p99, span(next.p99_ms));
    figure(flight, next.in_flight === null ? "–" : `${next.in_flight}${next.limit === null ? "" : ` / ${next.limit}`}${next.waiting ? ` + ${next.waiting}` : ""}`);
    attr(flight, "title", next.waiting ? `${next.waiting} waiting in line` : null);
    figure(speedLimit, pace(next));
    speedLimit.classList.toggle("cut-down", isCut(next));
    text(error, next.last_error === null ? "" : oneLine(next.last_error));
    attr(error, "title", next.last_error === null ? null : oneLine(next.last_error, 500));
    orders.set(next);
  }

  return {
    root,
    /** @param {ToolLine} next */
    set(next) {
      if (next !== line) draw(next);
      tick();
    },
  };
}

/**
 * @param {HTMLElement} cell
 * @param {string} value
 */
function figure(cell, value) {
  text(cell, value);
  cell.classList.toggle("nil", value === "–");
}

/**
 * How many processes share the guards of a tool.
 *
 * @param {ToolLine} line
 */
export function fleet(line) {
  const all = plural(line.sharing, "process", "processes");
  return line.alone ? `away for ${line.alone} of ${all}` : `shared by ${all}`;
}

/** @param {ToolLine} line */
export function labels(line) {
  const pending = line.processes.filter((each) => each.pending).length;
  return [
    line.is_server && h("span", { class: "badge" }, "server"),
    line.forced !== null && h("span", { class: "badge held" }, "held"),
    pending > 0 && h("span", { class: "badge", title: "An idle process takes it up with its next call" }, "on its way"),
    line.processes.length > 1 && h("span", { class: "badge" }, plural(line.processes.length, "process", "processes")),
    !line.processes.length && h("span", { class: "badge" }, "in no process"),
  ];
}

/**
 * @param {ToolLine[]} lines
 * @param {App} app
 */
function summed(lines, app) {
  if (!lines.length) return "";
  const open = lines.filter((line) => line.state === "open").length;
  const half = lines.filter((line) => line.state === "half_open").length;
  const alone = lines.filter((line) => line.alone > 0).length;
  const speed = lines.reduce((sum, line) => sum + app.live.speed(line), 0);
  const parts = [
    plural(lines.length, "tool"),
    open ? `${count(open)} open` : "",
    half ? `${count(half)} half-open` : "",
    alone ? `${count(alone)} without their fleet` : "",
    `${rate(speed)} calls/s`,
  ];
  return parts.filter(Boolean).join(" · ");
}

function hint() {
  return [
    h("p", {}, "No process on this store has a tool yet."),
    h("p", {}, "Open the same store in your agent, and its tools appear here with their first call:"),
    h("pre", {}, 'hf = holdfast.open("agent.db")\n\n@hf.tool()\ndef search(query: str) -> list[str]: ...'),
    h("p", {}, "Or put an MCP server behind it: ", h("code", {}, "holdfast wrap -- COMMAND"), "."),
  ];
}
