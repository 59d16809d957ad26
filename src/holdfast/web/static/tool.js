// The screen Tool: one tool in full: why its circuit changed, the policy in force, how long calls take, recent calls.

import { get, isPassing } from "./api.js";
import { attr, fill, h, renew, text } from "./dom.js";
import { age, histogram, since, sparkline } from "./draw.js";
import { bare, count, moment, oneLine, percent, rate, readable, said, span, words } from "./format.js";
import { sign, tone } from "./icons.js";
import { orderButtons, orderKeys } from "./orders.js";
import { excuse, fact, isUnknown, pressed, show, toggle } from "./parts.js";
import { encoded } from "./routes.js";
import { beside, fleet, labels, pace, trip } from "./tools.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ToolLine} ToolLine */
/** @typedef {import("./types.js").ToolDetail} ToolDetail */
/** @typedef {import("./types.js").Screen} Screen */
/** @typedef {{line: ToolLine, details: ToolDetail[]}} Whole */

const OFTEN = 1000; // milliseconds between two requests, at least
const MOST = 100; // rows of a table

/**
 * @param {App} app
 * @param {import("./routes.js").Route} route
 * @param {AbortSignal} gone
 * @returns {Screen}
 */
export function tool(app, route, gone) {
  const { name } = route;
  const shown = oneLine(name, 200);
  const circuit = h("span", { class: "state big" });
  const badges = h("span", { class: "badges" });
  const wait = h("span", { class: "wait" });
  const orders = orderButtons(app, () => name);
  const figures = h("dl", { class: "figures" });
  const spark = sparkline();
  const speed = h("dd", {}, "–");
  const pulse = h("div", { class: "wide" }, h("dt", {}, "Calls/s, last minute"), speed, spark.root);
  const error = h("p", { class: "error", hidden: true });
  const alone = h("p", { class: "error", hidden: true });
  const changes = grid("Transitions", "", ["When", "Change", "Why", "Wait", "Process"]);
  const took = h("div");
  const last = grid("Recent calls", "", ["When", "Outcome", "Took", "Attempts", "Category"]);
  const policy = grid("Policy in force", "times in seconds", ["Setting", "Value", "From"]);
  const where = grid("Processes", "", ["Process", "Host", "Circuit", "Fleet", "Calls", "Failed", "Opened", "Told"]);
  const content = h("div", { class: "panels", hidden: true }, changes.root, panel("Latency", "calls that took up to", took), last.root, policy.root, where.root);
  const empty = h("div", { class: "empty" }, h("p", {}, "Waiting for the server…"));
  const failing = toggle("Failed calls only", () => failed());
  const filters = h("span", { class: "filters" }, failing, orders.root);
  const head = h(
    "header",
    { class: "head" },
    h("h1", {}, h("span", { class: "kind" }, "Tool "), h("bdi", {}, shown)),
    circuit, wait, badges,
    filters,
  );
  const root = h("section", { class: "screen" }, head, h("div", { class: "scroll body", tabindex: "-1" }, figures, alone, error, content, empty));
  /** @type {Whole | null} */
  let whole = null;
  let only = false;
  let heard = 0;
  let asked = -OFTEN;
  let timer = 0;
  let due = false; // whether it has changed since it was asked for
  const held = () => app.live.paused && whole !== null;

  async function load() {
    asked = performance.now();
    due = false;
    try {
      const answer = await get(`/api/tools/${encoded(name)}`, gone);
      if (!held()) take(answer);
    } catch (problem) {
      if (!gone.aborted && !held()) trouble(problem);
    }
    due ||= held();
  }

  /** @param {{tool: ToolLine, details: ToolDetail[]}} answer */
  function take(answer) {
    whole = { line: answer.tool, details: answer.details };
    heard = performance.now();
    draw();
  }

  /** @param {unknown} problem */
  function trouble(problem) {
    fill(empty, ...excuse(problem, "No process on this store has a tool of this name now.", h("a", { href: "#/tools" }, "All tools")));
    if (isUnknown(problem)) vanish();
    attr(empty, "hidden", whole !== null);
    if (isPassing(problem)) soon();
  }

  /** Clears the screen, since the tool is gone. */
  function vanish() {
    whole = null;
    for (const each of [circuit, wait, badges, figures]) fill(each);
    for (const each of [alone, error]) attr(each, "hidden", true);
    for (const each of [content, filters]) attr(each, "hidden", true);
  }

  function soon() {
    due = true;
    if (timer || gone.aborted) return;
    timer = setTimeout(() => {
      timer = 0;
      if (!held() && !gone.aborted) void load();
    }, Math.max(0, asked + OFTEN - performance.now()));
  }

  function draw() {
    if (!whole) return;
    const { line, details } = whole;
    const now = app.live.now();
    attr(empty, "hidden", true);
    pressed(failing, only);
    show(circuit, line.state, "state big");
    fill(badges, ...labels(line));
    orders.set(line);
    renew(figures, [...facts(line), pulse]);
    attr(alone, "hidden", !line.alone);
    text(alone, `Fleet ${fleet(line)}: ${oneLine(line.why_alone ?? "", 300)}`);
    attr(error, "hidden", line.last_error === null);
    if (line.last_error !== null) fill(error, h("bdi", {}, oneLine(line.last_error, 500)), h("span", { class: "age" }, " ", since(line.last_error_at_ms, now)));
    for (const each of [content, filters]) attr(each, "hidden", false);
    changes.set(transitions(details, now), "Its circuit has not changed since its processes began.");
    fill(took, latencies(line, details));
    last.set(recent(details, only, now), none(line, details));
    policy.set(policies(details), "No living process tells its policy.");
    where.set(processes(line, now), "No process has it now; those to come find it held.");
    tick();
  }

  function tick() {
    if (!whole || app.live.paused) return;
    const { line } = whole;
    text(wait, beside(line, performance.now() - heard));
    age(root, app.live.now());
    spark.set(app.live.samples.get(name) ?? []);
    text(speed, rate(app.live.speed(app.live.shown.tools.get(name) ?? line)));
  }

  function failed() {
    only = !only;
    draw();
  }

  app.live.watch((changes) => (due || changes.all || changes.tools.has(name)) && soon(), gone);
  app.live.every(500, tick, gone);
  void load();
  return {
    title: shown,
    root,
    search: null,
    failed,
    actions: orderKeys(app, () => name),
  };
}

/** @param {ToolLine} line */
function facts(line) {
  const limit = line.limit === null ? "" : ` of ${line.limit}`;
  /** @type {[string, string][]} */
  const pairs = [
    ["Calls", count(line.calls)],
    ["Failed", `${count(line.failed)} (${percent(line.error_rate)})`],
    ["To the trip line", trip(line).title],
    ["Refused", count(line.denied)],
    ["From cache", count(line.cached)],
    ["p50", span(line.p50_ms)],
    ["p95", span(line.p95_ms)],
    ["p99", span(line.p99_ms)],
    ["In flight", line.in_flight === null ? "–" : `${line.in_flight}${limit}${line.waiting ? `, ${line.waiting} waiting` : ""}`],
    ["Rate", line.rate === null ? "no limit" : pace(line)],
  ];
  if (line.sharing) pairs.push(["Fleet", fleet(line)]);
  return pairs.map(([label, value]) => fact(label, value));
}

/**
 * @param {ToolDetail[]} details
 * @param {number} now
 */
function transitions(details, now) {
  const all = details.flatMap((each) => each.transitions.map((one) => ({ ...one, pid: each.pid }))).sort((a, b) => b.at_ms - a.at_ms);
  return all.slice(0, MOST).map((each) => [
    moment(each.at_ms, now),
    h("span", { class: "change" }, said(each.before), " → ", state(each.after)),
    each.why,
    each.backoff_ms && each.after === "open" ? bare(each.backoff_ms) : "–",
    String(each.pid),
  ]);
}

/**
 * @param {ToolLine} line
 * @param {ToolDetail[]} details
 */
function latencies(line, details) {
  /** @type {Map<number, number>} */
  const sums = new Map();
  for (const each of details) for (const [upper, n] of each.histogram) sums.set(upper ?? Infinity, (sums.get(upper ?? Infinity) ?? 0) + n);
  const buckets = [...sums].sort(([a], [b]) => a - b).map(([upper, n]) => /** @type {[number | null, number]} */ ([Number.isFinite(upper) ? upper : null, n]));
  const some = buckets.some(([, n]) => n > 0);
  return some ? histogram(buckets, { p50: line.p50_ms, p95: line.p95_ms, p99: line.p99_ms }) : h("p", { class: "none" }, "No call has ended yet.");
}

/**
 * @param {ToolDetail[]} details
 * @param {boolean} only
 * @param {number} now
 */
function recent(details, only, now) {
  const all = details.flatMap((each) => each.recent).sort((a, b) => b.at_ms - a.at_ms).filter((each) => !only || each.status !== "success");
  return all.slice(0, MOST).map((each) => [
    moment(each.at_ms, now),
    each.cached ? state("cached", "from cache") : state(each.status),
    span(each.duration_ms),
    String(each.attempts),
    each.category ? words(each.category) : "–",
  ]);
}

/**
 * Why no call is shown. A process keeps the last calls of all its tools together: a rarely used one's may be gone.
 *
 * @param {ToolLine} line
 * @param {ToolDetail[]} details
 */
function none(line, details) {
  if (details.some((each) => each.recent.length)) return "None of the last calls failed.";
  return line.calls ? "Of the last calls of its processes, none was of this tool." : "No call has ended yet.";
}

/** @param {ToolDetail[]} details */
function policies(details) {
  /** @type {Map<string, ToolDetail[]>} */
  const alike = new Map();
  for (const each of details) {
    const key = JSON.stringify(each.policy);
    alike.set(key, [...(alike.get(key) ?? []), each]);
  }
  return [...alike.values()].flatMap((group) => {
    const who = alike.size > 1 ? ` (process ${group.map((each) => each.pid).join(", ")})` : "";
    return (group[0]?.policy ?? []).map((each) => {
      const own = /^default/.test(each.origin) ? "dim" : "";
      const value = each.value === null ? "–" : oneLine(compact(each.value), 200);
      return [h("code", { class: own }, oneLine(each.key, 80)), h("code", { class: own }, value), h("bdi", { class: own }, oneLine(each.origin, 200), who)];
    });
  });
}

/**
 * @param {ToolLine} line
 * @param {number} now
 */
function processes(line, now) {
  return line.processes.map((each) => [
    h("bdi", {}, `${each.pid}${each.process_name ? ` ${oneLine(each.process_name, 80)}` : ""}`),
    h("bdi", {}, oneLine(each.host, 80)),
    state(each.tool.state, `${said(each.tool.state)}${each.pending ? " (on its way)" : ""}`),
    each.tool.shared === null ? "–" : each.tool.alone === null ? each.tool.shared.join(", ") : "away",
    count(each.tool.calls),
    count(each.tool.failed + each.tool.timed_out),
    String(each.tool.times_opened),
    since(each.at_ms, now),
  ]);
}

/**
 * @param {string} of
 * @param {string} [words_]
 */
function state(of, words_ = said(of)) {
  return h("span", { class: `state ${tone(of)}` }, sign(of), words_);
}

/**
 * @param {string} title
 * @param {string} note what its numbers are
 * @param {...Node} content
 */
function panel(title, note, ...content) {
  return h("section", { class: `panel ${title.split(" ")[0]?.toLowerCase()}` }, h("h2", {}, title, note && h("span", { class: "note" }, ` ${note}`)), ...content);
}

/**
 * A panel with a table whose rows are set again and again; its scroll position, the focus and a selection stay.
 *
 * @param {string} title
 * @param {string} note
 * @param {string[]} columns
 */
function grid(title, note, columns) {
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, ...columns.map((each) => h("th", { scope: "col" }, each))));
  const box = h("div", { class: "gridbox", tabindex: "0", role: "group", "aria-label": title }, h("table", { class: "grid", "aria-label": title }, head, body));
  const none = h("p", { class: "none" });
  return {
    root: panel(title, note, box, none),
    /**
     * @param {(string | Node)[][]} rows
     * @param {string} otherwise what to say if there are none
     */
    set(rows, otherwise) {
      renew(body, rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell)))));
      text(none, otherwise);
      attr(box, "hidden", rows.length === 0);
      attr(none, "hidden", rows.length > 0);
    },
  };
}

/** @param {unknown} value */
function compact(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : readable(value);
}
