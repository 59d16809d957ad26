// The events of a run as they were written, beside the waterfall; and one of them, or one call, in full.

import { attr, button, fill, h, text } from "./dom.js";
import { moment, oneLine, readable, refusal, said, size, span, start, visible, words } from "./format.js";
import { sign, tone } from "./icons.js";
import { fact } from "./parts.js";
import { Rows } from "./rows.js";
import { toRun, toTool } from "./routes.js";

/** @typedef {import("./types.js").RunEvent} RunEvent */
/** @typedef {import("./calls.js").Call} Call */

const CUT = 20_000; // characters that are shown at once
const TONES = /** @type {Record<string, string>} */ ({
  tool_attempt_failed: "bad", tool_denied: "warn", circuit_opened: "bad", circuit_half_opened: "warn", circuit_closed: "good",
  run_failed: "bad", run_completed: "good", run_interrupted: "warn", run_cancelled: "warn", run_cancel_requested: "warn", loop_detected: "warn", budget_warning: "warn",
});

export class Log {
  /**
   * @param {string} id
   * @param {() => number | null} selected
   * @param {AbortSignal} gone
   * @param {() => void} above called when the user scrolls to the beginning
   */
  constructor(id, selected, gone, above) {
    this.id = id;
    this.selected = selected;
    this.zero = 0;
    const head = h("thead", {}, h("tr", { "aria-rowindex": "1" }, h("th", { scope: "col", class: "number" }, "#"), h("th", { scope: "col", class: "number" }, "At"), h("th", { scope: "col" }, "Event")));
    this.table = h("table", { class: "log", "aria-label": "Events" }, head);
    this.root = h("div", { class: "scroll", tabindex: "-1" }, this.table);
    this.rows = new Rows({ scroller: this.root, table: this.table, key: (/** @type {RunEvent} */ event) => event.sequence, make: () => this.row(), gone, above });
  }

  /**
   * @param {RunEvent[]} events
   * @param {number} zero
   * @param {boolean} atEnd whether to stay at the end
   */
  set(events, zero, atEnd) {
    this.zero = zero;
    this.rows.set(events, atEnd);
  }

  row() {
    const number = h("td", { class: "number dim" });
    const at = h("td", { class: "number dim" });
    const link = h("a", { class: "to cut" });
    const root = h("tr", {}, number, at, h("td", {}, link));
    let drawn = -1;
    const set = (/** @type {RunEvent} */ event) => {
      attr(root, "class", this.selected() === event.sequence ? "selected" : null);
      attr(link, "aria-current", this.selected() === event.sequence ? "true" : null);
      if (drawn === event.sequence) return;
      drawn = event.sequence;
      text(number, String(event.sequence));
      text(at, span(Math.max(0, event.timestamp_ms - this.zero)));
      attr(link, "href", toRun(this.id, event.sequence));
      const ended = event.type.endsWith("_ended") ? tone(String(event.payload.status ?? "")) : "";
      fill(link, h("span", { class: `type ${TONES[event.type] ?? ended}` }, words(event.type)), h("bdi", { class: "of" }, oneLine(gist(event), 160)), event.late ? h("span", { class: "badge" }, "late") : null);
    };
    return { root, set };
  }
}

/** @param {RunEvent} event */
function gist(event) {
  const { payload } = event;
  const { used, limit, amount = used, unit = "" } = payload;
  const sum = typeof amount === "number" ? `${amount}${typeof limit === "number" ? ` of ${limit}` : ""} ${unit}`.trim() : null;
  const parts = [payload.tool, payload.name, payload.error ?? payload.reason, payload.text, sum];
  return parts.filter((part) => typeof part === "string" && part).join(" · ");
}

/**
 * A call, or an event that belongs to no call, in full.
 *
 * @param {Call | undefined} call
 * @param {RunEvent} event
 * @param {number} now
 * @param {() => void} close
 */
export function detail(call, event, now, close) {
  const shut = button({ class: "small", "aria-label": "Close the details", title: "esc" }, close, "Close");
  if (!call || call.kind === "mark") {
    const title = h("h2", {}, words(event.type), h("span", { class: "dim" }, ` #${event.sequence}`), shut);
    return h("section", { class: "detail", "aria-label": "The event" }, title, h("p", { class: "dim" }, moment(event.timestamp_ms, now)), block("Payload", event.payload));
  }
  const { facts } = call;
  const started = call.events.find((each) => each.type.endsWith("_started"));
  const title = h("h2", {}, h("span", { class: `state ${tone(call.status)}` }, sign(call.status)), call.kind === "step" ? h("bdi", {}, oneLine(call.name, 200)) : h("a", { href: toTool(call.name) }, h("bdi", {}, oneLine(call.name, 200))), shut);
  /** @type {[string, string][]} */
  const pairs = [["Status", said(call.status)], ["Began", moment(call.at, now)]];
  if (call.end !== null && call.status !== "denied") pairs.push(["In the tool", span(typeof facts.duration_ms === "number" ? facts.duration_ms : call.end - call.at)]);
  if (typeof facts.waited_ms === "number" && facts.waited_ms > 0) pairs.push(["Waited", span(facts.waited_ms)]);
  if (typeof facts.attempts === "number") pairs.push(["Attempts", String(facts.attempts)]);
  if (typeof facts.category === "string") pairs.push(["Category", words(facts.category)]);
  if (typeof facts.fallback === "string") pairs.push(["Answered by", oneLine(facts.fallback, 200)]);
  if (typeof facts.kind === "string") pairs.push(["Refused by", refusal(facts.kind)]);
  if (typeof facts.retry_after_ms === "number") pairs.push(["Again in", span(facts.retry_after_ms)]);
  return h(
    "section",
    { class: "detail", "aria-label": `The call of ${oneLine(call.name, 120)}` },
    title,
    h("dl", { class: "figures" }, ...pairs.map(([label, value]) => fact(label, value))),
    ...call.fails.map((fail, index) => block(`Attempt ${index + 1} failed`, fail.error || fail.category)),
    started && "arguments" in started.payload ? block("Arguments", started.payload.arguments) : null,
    "result" in facts ? block("Result", facts.result) : null,
    typeof facts.error === "string" && !call.fails.length ? block("Error", facts.error) : null,
    typeof facts.reason === "string" ? block("Reason", facts.reason) : null,
  );
}

/**
 * A foreign value as text; a long one is cut, with a button that shows all of it.
 *
 * @param {string} title
 * @param {unknown} value
 */
export function block(title, value) {
  const whole = readable(value);
  const shown = h("pre", { tabindex: "0", "aria-label": title }, visible(start(whole, CUT)));
  const more = whole.length > CUT ? button({ class: "small" }, () => all(), `Show all ${size(whole.length)} characters`) : null;
  function all() {
    text(shown, visible(whole));
    shown.focus({ preventScroll: true });
    more?.remove();
  }
  return h("div", { class: "block" }, h("h3", {}, title), shown, more);
}
