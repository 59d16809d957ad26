// The screen Runs: what each run is doing now, the newest first; older ones are fetched as the user scrolls.

import { attr, button, fill, h, hide, on, text } from "./dom.js";
import { ago, count, oneLine, plural, span } from "./format.js";
import { Found, standing } from "./found.js";
import { cancelRun, cancelRuns, isOver } from "./orders.js";
import { field, line, listing, nothing, pressed, show, toggle } from "./parts.js";
import { Rows } from "./rows.js";
import { toRun } from "./routes.js";
import { say } from "./say.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").RunLine} RunLine */
/** @typedef {import("./types.js").Screen} Screen */

const STATUSES = ["created", "planning", "executing", "verifying", "completed", "failed", "cancelled", "interrupted"];
const FIELDS = /** @type {const} */ (["status", "tool", "session", "text"]);
const COLUMNS = [
  ["status", "Status"],
  ["run", "Run"],
  ["session", "Session"],
  ["doing", "Now, or how it ended"],
  ["calls number", "Calls"],
  ["fails number", "Failed"],
  ["denials number", "Refused"],
  ["began number", "Began"],
  ["took number", "Took"],
  ["stop", "Cancel"],
];

/**
 * @param {App} app
 * @param {import("./routes.js").Route} route
 * @param {AbortSignal} gone
 * @returns {Screen}
 */
export function runs(app, route, gone) {
  const status = h("select", { "aria-label": "Status" }, h("option", { value: "" }, "any status"), ...STATUSES.map((each) => h("option", { value: each }, each)));
  const inputs = { status, tool: field("tool", "Tool that was called"), session: field("session", "Session"), text: field("text", "Text in prompt, result or error") };
  const failing = toggle("Failed only", () => failed());
  const bulk = button({ class: "danger", title: "Cancel every run that the filter shows (B)" }, () => void cancelRuns(app, filter()), "Cancel all shown…");
  const list = listing({ title: "Runs", label: "Runs, the newest first", kind: "runs", columns: COLUMNS, filters: [...Object.values(inputs), failing, bulk] });
  const found = new Found(app, filter, draw, gone);
  const rows = new Rows({ ...list, key: (/** @type {RunLine} */ run) => run.id, make: () => row(app), gone, near: () => void found.more() });

  function filter() {
    return { status: status.value, tool: inputs.tool.value.trim(), session: inputs.session.value.trim(), text: inputs.text.value.trim() };
  }

  let isAsked = false; // whether the user has set a filter, and waits for what it finds
  const isFiltered = () => Object.values(filter()).some(Boolean);

  /** @param {boolean} isAnew */
  function draw(isAnew) {
    const { loaded, next } = found;
    const lines = found.lines();
    pressed(failing, status.value === "failed");
    attr(bulk, "disabled", lines.length === 0);
    if (lines.length) list.say(null);
    else list.say(next === null ? nothing(loaded, isFiltered(), "run", hint) : []);
    if (isAnew) list.scroller.scrollTop = 0;
    if (list.scroller.scrollTop > 0) rows.hold(() => rows.set(lines)); // new runs come in above what the user reads
    else rows.set(lines);
    const active = lines.filter(isActive).length;
    const many = `${count(lines.length)}${next === null ? "" : "+"}`;
    text(list.summary, loaded && lines.length ? `${many} shown · ${plural(active, "active", "active")}` : "");
    if (isAnew && loaded && isAsked) say(`${many} ${lines.length === 1 ? "run" : "runs"}`);
  }

  /** @param {URLSearchParams} given */
  function take(given) {
    for (const name of FIELDS) inputs[name].value = given.get(name) ?? "";
  }

  function ask() {
    isAsked = true;
    app.note("runs", filter());
    void found.load();
  }

  function failed() {
    status.value = status.value === "failed" ? "" : "failed";
    ask();
  }

  let typing = 0;
  for (const input of [inputs.tool, inputs.session, inputs.text]) {
    on(input, "input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => gone.aborted || ask(), 250);
    });
  }
  on(status, "change", ask);
  app.live.every(1000, () => rows.refresh(), gone);
  take(route.query);
  draw(true);
  void found.load();
  return {
    title: "Runs",
    root: list.root,
    search: inputs.text,
    failed,
    move: (delta) => rows.move(delta),
    actions: {
      X: () => {
        const run = rows.focused();
        if (run) void cancelRun(app, run);
      },
      B: () => rows.items.length && void cancelRuns(app, filter()),
    },
    back() {
      if (!isFiltered()) return false;
      take(new URLSearchParams());
      ask();
      return true;
    },
    follow(to) {
      take(to.query);
      void found.load();
      return true;
    },
  };
}

/** @param {RunLine} run */
function isActive(run) {
  return !isOver(run) && !run.interrupted;
}

/** @param {App} app */
function row(app) {
  /** @type {RunLine | undefined} */
  let run;
  const state = h("span", { class: "state" });
  const link = h("a", { class: "to cut" });
  const [session, doing] = [h("bdi", { class: "cut" }), h("span", { class: "oneline" })];
  const [calls, fails, denials, began, took] = [h("td"), h("td"), h("td"), h("td"), h("td")];
  const stop = button({ class: "small change" }, () => run && void cancelRun(app, run), "Cancel");
  const cells = [h("td", {}, state), h("th", { scope: "row" }, link), h("td", {}, session), h("td", {}, doing), calls, fails, denials, began, took, h("td", {}, stop)];

  /** @param {RunLine} next */
  function draw(next) {
    run = next;
    show(state, standing(next));
    fill(link, h("bdi", { class: "prompt" }, next.prompt ? oneLine(next.prompt, 160) : "no prompt"), h("span", { class: "id" }, oneLine(next.id, 12)));
    attr(link, "href", toRun(next.id));
    attr(link, "title", oneLine(next.id, 200));
    text(session, oneLine(next.session_id, 80));
    text(calls, count(next.tool_calls));
    text(fails, count(next.tool_failures));
    fails.classList.toggle("some", Boolean(next.tool_failures));
    fails.classList.toggle("nil", !next.tool_failures);
    text(denials, count(next.tool_denials));
    denials.classList.toggle("some", Boolean(next.tool_denials));
    denials.classList.toggle("nil", !next.tool_denials);
    hide(stop, isOver(next), link);
    attr(stop, "aria-label", `Cancel run ${oneLine(next.id, 40)}`);
  }

  return {
    root: line(COLUMNS, cells),
    /** @param {RunLine} next */
    set(next) {
      if (next !== run) draw(next);
      const now = app.live.now();
      const start = next.started_at_ms ?? next.created_at_ms;
      fill(doing, ...activity(next, now));
      text(began, ago(start, now));
      const end = next.finished_at_ms ?? (isActive(next) ? now : next.updated_at_ms);
      text(took, next.status === "created" && isActive(next) ? "–" : span(end - start));
    },
  };
}

/**
 * @param {RunLine} run
 * @param {number} now
 */
function activity(run, now) {
  if (run.error) return [h("bdi", { class: `cut ${run.status === "cancelled" ? "dim" : "bad"}` }, oneLine(run.error))];
  if (run.current && !run.interrupted) {
    const { name, attempt, since_ms: since } = run.current;
    return [h("bdi", { class: "cut" }, oneLine(name, 120)), h("span", { class: "age" }, `${attempt > 1 ? `attempt ${attempt}, ` : ""}${span(Math.max(0, Math.round((now - since) / 100) * 100))}`)];
  }
  if (standing(run) === "interrupted") return [h("span", { class: "cut warn" }, "its process is gone")];
  return [h("bdi", { class: "cut dim" }, run.result_text ? oneLine(run.result_text) : "")];
}

function hint() {
  return [
    h("p", {}, "No run is in this store yet."),
    h("p", {}, "A run is a block around the calls that belong together:"),
    h("pre", {}, 'with hf.run(prompt="find the cheapest flight") as run:\n    search("FRA to LIS")'),
    h("p", {}, "Or ", h("code", {}, "holdfast run MODULE:FUNCTION"), ", which can be resumed after a crash. A session of an MCP client through ", h("code", {}, "holdfast wrap"), " is a run, too."),
  ];
}
