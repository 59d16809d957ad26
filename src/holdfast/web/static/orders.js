// What can be done to a circuit or a run, each after one question that names it.

import { post, query } from "./api.js";
import { attr, button, h } from "./dom.js";
import { oneLine, plural } from "./format.js";
import { pressed } from "./parts.js";
import { encoded } from "./routes.js";
import { ask, say, tell } from "./say.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ToolLine} ToolLine */
/** @typedef {import("./types.js").RunLine} RunLine */
/** @typedef {"open" | "close" | "auto" | "reset"} Order */

const REASON = "cancelled from the page";

const ORDERS = {
  open: {
    question: "Hold open the circuit of",
    note: "Every call is refused, in every process and in those to come, until auto or reset.",
    verb: "Hold open",
    done: "is held open",
  },
  close: {
    question: "Hold closed the circuit of",
    note: "Every call passes and no failure counts, until auto or reset.",
    verb: "Hold closed",
    done: "is held closed",
  },
  auto: {
    question: "Let go of the circuit of",
    note: "It opens and closes by itself again.",
    verb: "Let go",
    done: "decides by itself",
  },
  reset: {
    question: "Reset the circuit of",
    note: "It closes, its failures are forgotten, and nobody holds it any more.",
    verb: "Reset",
    done: "is reset",
  },
};

/**
 * Asks the user, then gives the order.
 *
 * @param {App} app
 * @param {Order} order
 * @param {string} name
 */
async function orderTool(app, order, name) {
  if (await tellIfReadOnly(app)) return;
  const { done, ...asked } = ORDERS[order];
  if (!(await ask({ ...asked, object: oneLine(name, 120), danger: order === "open" }))) return;
  await app.attempt(async () => {
    const { tool } = await post(`/api/tools/${encoded(name)}/${order}`);
    tell(`${oneLine(name, 120)} ${done}`);
    app.live.take("tools", { tools: [tool] });
  });
}

/**
 * The buttons for one tool; they show how it is held.
 *
 * @param {App} app
 * @param {() => string} name
 */
export function orderButtons(app, name) {
  const make = (/** @type {Order} */ order, /** @type {string} */ label) =>
    button({ class: order, title: `${ORDERS[order].note} (${label[0]})` }, () => void orderTool(app, order, name()), label);
  const auto = make("auto", "Auto");
  const open = make("open", "Open");
  const close = make("close", "Close");
  const reset = make("reset", "Reset");
  const held = h("span", { class: "segments", role: "group" }, auto, open, close);
  const root = h("span", { class: "orders" }, held, reset);
  return {
    root,
    /** @param {ToolLine} line */
    set(line) {
      const shown = oneLine(line.name, 120);
      attr(held, "aria-label", `Circuit of ${shown}`);
      pressed(auto, line.forced === null);
      pressed(open, line.forced === "open");
      pressed(close, line.forced === "closed");
      for (const each of [auto, open, close, reset]) attr(each, "aria-label", `${each.textContent}: ${shown}`);
    },
  };
}

/**
 * What capital letters do to the circuit of the tool that *name* returns, if it returns one.
 *
 * @param {App} app
 * @param {() => string | undefined} name
 */
export function orderKeys(app, name) {
  const act = (/** @type {Order} */ order) => () => {
    const tool = name();
    if (tool !== undefined) void orderTool(app, order, tool);
  };
  return { O: act("open"), C: act("close"), A: act("auto"), R: act("reset") };
}

/**
 * Asks the user, then cancels a run.
 *
 * @param {App} app
 * @param {RunLine} run
 */
export async function cancelRun(app, run) {
  if (await tellIfReadOnly(app)) return;
  if (isOver(run)) return say("The run is over");
  const object = `${run.id}${run.prompt ? ` (${oneLine(run.prompt, 60)})` : ""}`;
  const note = run.owner ? "Its process is told; what it has finished stays." : "Nobody works on it now; it ends at once.";
  if (!(await ask({ question: "Cancel the run", object, note, verb: "Cancel the run", danger: true }))) return;
  await app.attempt(async () => {
    const { result } = await post(`/api/runs/${encoded(run.id)}/cancel`, { reason: REASON });
    if (result === "requested") tell(`Asked run ${run.id} to stop`);
    else tell(result === "already_finished" ? "The run is over already" : "The run is gone", "bad");
  });
}

/**
 * Asks the user, then cancels all runs of a filter.
 *
 * @param {App} app
 * @param {Record<string, string>} filter
 */
export async function cancelRuns(app, filter) {
  if (await tellIfReadOnly(app)) return;
  const parts = Object.entries(filter).filter(([, value]) => value).map(([key, value]) => `${key} ${oneLine(value, 60)}`);
  const object = parts.length ? `with ${parts.join(", ")}` : "in this store";
  const note = "Those that are over stay as they are. Processes that work on the others are told.";
  if (!(await ask({ question: "Cancel every run", object, note, verb: "Cancel them", danger: true }))) return;
  await app.attempt(async () => {
    let requested = 0;
    let before = "";
    const all = parts.length ? "" : "true";
    for (;;) {
      const done = await post(`/api/runs/cancel${query({ ...filter, all, before })}`, { reason: REASON });
      requested += done.requested;
      if (!done.next) break;
      before = done.next;
    }
    tell(requested ? `Asked ${plural(requested, "run")} to stop` : "No run that could be cancelled");
  });
}

/**
 * True if the page is read-only, and tells the user so: keys work while buttons are hidden, and before this is known.
 *
 * @param {App} app
 */
async function tellIfReadOnly(app) {
  await app.live.told;
  if (app.live.latest.readOnly) tell("This page changes nothing: it was started with --read-only", "bad");
  return app.live.latest.readOnly;
}

/** @param {RunLine} run */
export function isOver(run) {
  return run.status === "completed" || run.status === "failed" || run.status === "cancelled";
}
