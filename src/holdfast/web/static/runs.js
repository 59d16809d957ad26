// The screen Runs: what each run is doing now, the newest first; as many as one cares to scroll through.

import { get, query } from "./api.js";
import { attr, button, fill, h, on, text } from "./dom.js";
import { ago, count, oneLine, plural, span } from "./format.js";
import { cancelRun, cancelRuns, isOver } from "./orders.js";
import { field, heading, heads, line, nothing, pressed, show, toggle } from "./parts.js";
import { Rows } from "./rows.js";
import { toRun } from "./routes.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").RunLine} RunLine */
/** @typedef {import("./types.js").Screen} Screen */

const STATUSES = ["created", "planning", "executing", "verifying", "completed", "failed", "cancelled", "interrupted"];
const PAGE = 100;
const MOST = 1000; // that the server gives at once
const OFTEN = 1000; // milliseconds between two questions for what is new
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
 * @returns {Screen}
 */
export function runs(app, route) {
  const status = h("select", { "aria-label": "Status" }, h("option", { value: "" }, "any status"), ...STATUSES.map((each) => h("option", { value: each }, each)));
  const inputs = { status, tool: field("tool", "Tool that was called"), session: field("session", "Session"), text: field("text", "Text in prompt, result or error") };
  const failing = toggle("Failed only", () => failed());
  const bulk = button({ class: "danger", title: "Cancel every run that the filter shows (B)" }, () => void cancelRuns(app, filter()), "Cancel all shown…");
  const summary = h("p", { class: "summary" });
  const table = h("table", { class: "lines runs", "aria-label": "Runs, the newest first" }, heads(COLUMNS));
  const empty = h("div", { class: "empty", hidden: true });
  const scroller = h("div", { class: "scroll", tabindex: "-1" }, table, empty);
  const root = h("section", { class: "screen" }, heading("Runs", summary, ...Object.values(inputs), failing, bulk), scroller);
  const rows = new Rows({ scroller, table, key: (/** @type {string} */ id) => id, make: () => row(app), fill: (parts, id) => parts.set(known.get(id)), near: () => void more() });
  /** @type {Map<string, RunLine>} */
  let known = new Map();
  /** @type {string | null} */
  let next = null;
  let loading = new AbortController();
  let busy = false;
  let loaded = false;
  let timer = 0;
  let due = false;
  let asked = 0;
  let lost = false; // whether the last question had no answer: it is asked again until it has, and that is told once
  let stale = false; // whether all that is known has to be asked for again, not the newest alone
  /** @type {Map<string, RunLine> | null} */
  let fresh = null; // what is being asked for again; what the feed tells meanwhile counts for more
  let moved = true; // whether other runs are to be shown, or in another order

  const held = () => app.live.paused && loaded;

  function filter() {
    return { status: status.value, tool: inputs.tool.value.trim(), session: inputs.session.value.trim(), text: inputs.text.value.trim() };
  }

  /** Asks anew, for another filter. */
  async function load() {
    loading.abort();
    loading = new AbortController();
    busy = false;
    next = null;
    lost = false;
    const { signal } = loading;
    asked = performance.now();
    await insist(async () => {
      const page = await find("", signal);
      known = new Map(page.runs.map((run) => [run.id, run]));
      moved = true;
      next = page.next;
      loaded = true;
      stale = false;
      scroller.scrollTop = 0;
      draw();
    });
    if (!lost || signal.aborted) return;
    known.clear(); // they are of another filter
    moved = true;
    loaded = false;
    draw();
  }

  /**
   * Asks, and asks for everything again where there is no answer.
   *
   * @param {() => Promise<void>} work
   */
  async function insist(work) {
    lost = !(await app.attempt(work, lost));
    stale ||= lost;
    if (lost) soon();
  }

  /** Asks for older ones. */
  async function more() {
    if (busy || next === null) return;
    busy = true;
    const { signal } = loading;
    await app.attempt(async () => {
      const page = await find(next ?? "", signal);
      for (const run of page.runs) if (!known.has(run.id)) known.set(run.id, run);
      moved = true;
      ({ next } = page);
    });
    if (signal.aborted) return;
    busy = false;
    draw();
  }

  /**
   * @param {string} before
   * @param {AbortSignal} signal
   * @param {number} limit
   * @returns {Promise<{runs: RunLine[], next: string | null}>}
   */
  function find(before, signal, limit = PAGE) {
    return get(`/api/runs${query({ ...filter(), limit, before })}`, signal);
  }

  /** Asks again, where it takes the server to tell which runs are meant, or what became of them. */
  function soon() {
    due = true;
    if (timer) return;
    const wait = Math.max(0, asked + OFTEN - performance.now());
    timer = setTimeout(async () => {
      if (!held()) {
        due = false;
        asked = performance.now();
        await insist(() => again(stale, loading.signal));
        fresh = null;
      }
      timer = 0;
      if (due && !held() && !loading.signal.aborted) soon();
    }, wait);
  }

  /**
   * Asks for the newest, or for all down to the oldest that is known: then those that are gone are left out.
   *
   * @param {boolean} whole
   * @param {AbortSignal} signal
   */
  async function again(whole, signal) {
    const oldest = whole ? Math.min(...[...known.values()].map((run) => run.created_at_ms)) : Infinity;
    const found = new Map();
    fresh = found;
    stale = false;
    let before = "";
    let reached = Infinity;
    do {
      const page = await find(before, signal, whole ? Math.max(PAGE, Math.min(known.size, MOST)) : PAGE);
      for (const run of page.runs) if (!found.has(run.id)) found.set(run.id, run);
      reached = page.runs.at(-1)?.created_at_ms ?? reached;
      before = page.next ?? "";
    } while (before && reached > oldest);
    if (held()) {
      due = true;
      stale ||= whole;
      return;
    }
    known = whole ? found : new Map([...known, ...found]);
    if (whole) next = before || null;
    loaded = true;
    moved = true;
    draw();
  }

  /** @param {import("./live.js").Changes} changes */
  function changed(changes) {
    if (due) soon();
    if (!loaded || !(changes.runs.size || changes.all)) return;
    const wanted = filter();
    const plain = !wanted.tool && !wanted.text;
    let strange = changes.all;
    stale ||= changes.all;
    moved ||= Object.values(wanted).some(Boolean);
    for (const id of changes.runs) {
      const run = app.live.shown.runs.get(id);
      if (!run) {
        strange = stale = true; // more have changed than the picture holds
        continue;
      }
      moved ||= !known.has(id);
      if (known.has(id) || (plain && fits(run, wanted))) {
        known.set(id, run);
        fresh?.set(id, run);
      } else if (!plain) strange = true;
    }
    if (strange) soon();
    draw();
  }

  function draw() {
    if (!moved) {
      rows.refresh();
      sum();
      return;
    }
    moved = false;
    const wanted = filter();
    const items = [...known.values()].filter((run) => fits(run, wanted)).sort((a, b) => b.created_at_ms - a.created_at_ms || (a.id < b.id ? 1 : -1));
    pressed(failing, status.value === "failed");
    attr(table, "hidden", items.length === 0);
    attr(empty, "hidden", items.length > 0 || next !== null);
    attr(bulk, "disabled", items.length === 0);
    if (!items.length) fill(empty, ...nothing(loaded, Object.values(wanted).some(Boolean), "run", hint));
    rows.set(items.map((run) => run.id));
    sum();
  }

  function sum() {
    const { items } = rows;
    const active = items.filter((id) => isActive(known.get(id))).length;
    text(summary, loaded && items.length ? `${count(items.length)}${next === null ? "" : "+"} shown · ${plural(active, "active", "active")}` : "");
  }

  /** @param {URLSearchParams} given */
  function take(given) {
    for (const name of FIELDS) inputs[name].value = given.get(name) ?? "";
  }

  function ask() {
    app.note("runs", filter());
    void load();
  }

  function failed() {
    status.value = status.value === "failed" ? "" : "failed";
    ask();
  }

  let typing = 0;
  for (const input of [inputs.tool, inputs.session, inputs.text]) {
    on(input, "input", () => {
      clearTimeout(typing);
      typing = setTimeout(ask, 250);
    });
  }
  on(status, "change", ask);
  const stop = app.live.watch(changed);
  const ticking = setInterval(() => !app.live.paused && rows.refresh(), 1000);
  take(route.query);
  draw();
  void load();
  return {
    title: "Runs",
    root,
    search: inputs.text,
    failed,
    move: (delta) => rows.move(delta),
    actions: {
      X: () => {
        const run = known.get(rows.focused() ?? "");
        if (run) void cancelRun(app, run);
      },
      B: () => rows.items.length && void cancelRuns(app, filter()),
    },
    back() {
      if (!Object.values(filter()).some(Boolean)) return false;
      take(new URLSearchParams());
      ask();
      return true;
    },
    follow(to) {
      take(to.query);
      void load();
      return true;
    },
    leave() {
      loading.abort();
      stop();
      rows.leave();
      clearInterval(ticking);
      clearTimeout(timer);
      clearTimeout(typing);
    },
  };
}

/**
 * The status that is shown: a run whose process is gone is interrupted, whatever it was doing.
 *
 * @param {RunLine} run
 */
export function standing(run) {
  return run.interrupted && !isOver(run) ? "interrupted" : run.status;
}

/** @param {RunLine | undefined} run */
function isActive(run) {
  return run !== undefined && !isOver(run) && !run.interrupted;
}

/**
 * Whether a run is meant, as far as the page can tell.
 *
 * @param {RunLine} run
 * @param {{status: string, session: string}} wanted
 */
function fits(run, wanted) {
  const meant = !wanted.status || (wanted.status === "interrupted" ? standing(run) === "interrupted" : run.status === wanted.status);
  return meant && (!wanted.session || run.session_id === wanted.session);
}

/** @param {App} app */
function row(app) {
  /** @type {RunLine | null} */
  let run = null;
  const state = h("span", { class: "state" });
  const link = h("a", { class: "to cut" });
  const [session, doing] = [h("bdi", { class: "cut" }), h("span", { class: "oneline" })];
  const [calls, fails, denials, began, took] = [h("td"), h("td"), h("td"), h("td"), h("td")];
  const stop = button({ class: "small change" }, () => run && void cancelRun(app, run), "Cancel");
  const cells = [h("td", {}, state), h("th", { scope: "row" }, link), h("td", {}, session), h("td", {}, doing), calls, fails, denials, began, took, h("td", {}, stop)];
  const root = line(COLUMNS, cells);
  /** @type {RunLine | null} */
  let drawn = null;
  return {
    root,
    parts: {
      /** @param {RunLine | undefined} each */
      set(each) {
        if (!each) return;
        run = each;
        const now = app.live.now();
        const over = isOver(each);
        if (drawn !== each) {
          drawn = each;
          show(state, standing(each));
          fill(link, h("bdi", { class: "prompt" }, each.prompt ? oneLine(each.prompt, 160) : "no prompt"), h("span", { class: "id" }, oneLine(each.id, 12)));
          attr(link, "href", toRun(each.id));
          attr(link, "title", oneLine(each.id, 200));
          text(session, oneLine(each.session_id, 80));
          text(calls, count(each.tool_calls));
          text(fails, count(each.tool_failures));
          fails.classList.toggle("some", Boolean(each.tool_failures));
          text(denials, count(each.tool_denials));
          denials.classList.toggle("some", Boolean(each.tool_denials));
          denials.classList.toggle("nil", !each.tool_denials);
          attr(stop, "hidden", over);
          attr(stop, "aria-label", `Cancel run ${oneLine(each.id, 40)}`);
        }
        fill(doing, ...activity(each, now));
        text(began, ago(each.started_at_ms ?? each.created_at_ms, now));
        text(took, each.status === "created" && isActive(each) ? "–" : span((each.finished_at_ms ?? (isActive(each) ? now : each.updated_at_ms)) - (each.started_at_ms ?? each.created_at_ms)));
      },
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
