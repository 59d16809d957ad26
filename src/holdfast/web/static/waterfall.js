// The calls of a run over time: one row per call, with a bar for each attempt and each wait.

import { bars, extent } from "./calls.js";
import { attr, fill, h, measure, text } from "./dom.js";
import { bare, oneLine, refusal, said, span, words } from "./format.js";
import { sign, tone } from "./icons.js";
import { Rows } from "./rows.js";
import { toRun } from "./routes.js";
import { Scale } from "./scale.js";

/** @typedef {import("./calls.js").Call} Call */
/** @typedef {import("./calls.js").Calls} Calls */

const OUTCOMES = /** @type {Record<string, string>} */ ({ success: "good", failed: "bad", timed_out: "bad", running: "live", cancelled: "dim", unknown: "warn" });

export class Waterfall {
  /**
   * @param {string} id of the run
   * @param {() => number | null} selected
   * @param {AbortSignal} gone
   * @param {() => void} above called when the user scrolls to the beginning
   */
  constructor(id, selected, gone, above) {
    this.id = id;
    this.selected = selected;
    this.scale = new Scale([], 0, 1);
    this.now = 0;
    this.zero = 0;
    this.from = 0;
    /** @type {[number, number][]} */
    this.spans = [];
    /** @type {Call[]} */
    this.running = [];
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    const head = h("thead", {}, h("tr", { "aria-rowindex": "1" }, h("th", { scope: "col", class: "what" }, "Call"), h("th", { scope: "col", class: "when" }, h("span", { class: "unseen" }, "Time"), this.axis), h("th", { scope: "col", class: "took number" }, "Took")));
    this.table = h("table", { class: "waterfall", "aria-label": "Calls over time" }, head);
    this.none = h("p", { class: "none" });
    this.root = h("div", { class: "scroll falls", tabindex: "-1" }, this.table, this.none);
    this.rows = new Rows({ scroller: this.root, table: this.table, key: (/** @type {Call} */ call) => call.sequence, make: () => this.row(), gone, above });
  }

  /**
   * Shows some of the calls, on the time scale of all of them.
   *
   * @param {Calls} calls
   * @param {Call[]} shown
   * @param {{zero: number, from: number, now: number, atEnd: boolean}} time when the run began, and what is shown of it; and
   *   whether to stay at the end
   */
  set(calls, shown, { zero, from, now, atEnd }) {
    this.zero = zero;
    this.from = from;
    this.running = calls.all.filter((call) => call.end === null);
    this.spans = calls.all.filter((call) => call.end !== null).map((call) => extent(call, now));
    this.spans.sort((a, b) => a[0] - b[0]);
    this.stretch(now);
    this.rows.set(shown, atEnd);
    text(this.none, shown.length ? "" : calls.all.length ? "No call is like this; esc shows all of them." : "No call yet.");
    attr(this.axis, "hidden", !calls.all.length);
  }

  /**
   * Lets running bars grow until *now*.
   *
   * @param {number} now
   */
  grow(now) {
    this.stretch(now);
    this.rows.refresh();
  }

  /** @param {number} now */
  stretch(now) {
    this.now = now;
    const growing = this.running.map((call) => extent(call, now));
    const spans = growing.length ? [...this.spans, ...growing].sort((a, b) => a[0] - b[0]) : this.spans;
    const first = Math.min(this.from, spans[0]?.[0] ?? this.from);
    this.scale = new Scale(spans, first, now);
    const wide = this.axis.clientWidth;
    const ticks = this.scale.ticks(this.zero, Math.max(2, Math.floor(wide / 110))).map(({ at, since }) => placed(h("span", { class: "tick" }, since === 0 ? "0" : bare(since)), at));
    const folds = this.scale.folds().map((fold) => {
      const made = placed(h("span", { class: "fold", title: `nothing for ${span(fold.span)}` }), fold.at);
      measure(made, "width", share(fold.size));
      return made;
    });
    fill(this.axis, ...folds, ...ticks);
  }

  row() {
    const mark = h("span", { class: "mark" });
    const name = h("bdi");
    const link = h("a", { class: "to cut" }, mark, name);
    const note = h("span", { class: "note" });
    const lane = h("div", { class: "lane" });
    const took = h("td", { class: "took number" });
    const root = h("tr", {}, h("th", { scope: "row", class: "what" }, h("div", { class: "label" }, link, note)), h("td", { class: "when" }, lane), took);
    let drawn = "";
    const set = (/** @type {Call} */ call) => {
      const key = `${call.sequence} ${call.status} ${call.fails.length}`;
      if (key !== drawn) {
        drawn = key;
        attr(link, "href", toRun(this.id, call.sequence));
        fill(mark, sign(call.status), h("span", { class: "unseen" }, call.kind === "mark" ? "" : `${said(call.status)}: `));
        attr(mark, "class", `mark ${tone(call.status)}`);
        text(name, oneLine(call.kind === "mark" ? marked(call) : call.name, 120));
        text(note, remark(call));
        measure(link, "--depth", String(Math.min(8, call.depth)));
      }
      attr(root, "class", `${call.kind} ${call.status}${this.selected() === call.sequence ? " selected" : ""}`);
      attr(link, "aria-current", this.selected() === call.sequence ? "true" : null);
      text(took, call.kind === "mark" || call.status === "denied" ? "" : call.status === "cached" ? "–" : span((call.end ?? this.now) - call.at));
      this.draw(lane, call);
    };
    return { root, set };
  }

  /**
   * @param {HTMLElement} lane
   * @param {Call} call
   */
  draw(lane, call) {
    const wanted = bars(call, this.now);
    const many = Math.max(1, wanted.length);
    while (lane.children.length > many) lane.lastElementChild?.remove();
    while (lane.children.length < many) lane.append(h("span"));
    if (!wanted.length) {
      const dot = /** @type {HTMLElement} */ (lane.children[0]);
      attr(dot, "class", `point ${call.status}`);
      measure(dot, "left", share(this.scale.place(call.at)));
      measure(dot, "width", "");
      attr(dot, "title", remark(call));
    }
    for (const [index, bar] of wanted.entries()) {
      const drawn = /** @type {HTMLElement} */ (lane.children[index]);
      const from = this.scale.place(bar.from);
      attr(drawn, "class", `bar ${bar.kind} ${OUTCOMES[bar.outcome] ?? ""}`);
      measure(drawn, "left", share(from));
      measure(drawn, "width", share(Math.max(0, this.scale.place(bar.to) - from)));
      attr(drawn, "title", described(bar));
    }
  }
}

/** @param {import("./calls.js").Bar} bar */
function described(bar) {
  const long = span(bar.to - bar.from);
  if (bar.kind === "wait") return `waited in line for ${long}`;
  if (bar.kind === "backoff") return `waited ${long} before the next attempt`;
  return `${bar.number ? `attempt ${bar.number}` : "an attempt of a process that died"}: ${words(bar.outcome)}, ${long}`;
}

/**
 * What is worth saying of a call beside its bars.
 *
 * @param {Call} call
 */
function remark(call) {
  if (call.status === "cached") return "from cache";
  if (call.status === "denied") return `refused: ${refusal(String(call.facts.kind ?? ""))}`;
  if (call.status === "unknown") return "nobody knows its end";
  if (call.fails.length > 0 && call.status !== "failed") return `attempt ${call.fails.length + 1}`;
  if (call.fails.length > 1) return `${call.fails.length} attempts`;
  return call.status === "timed_out" ? "timed out" : "";
}

/** @param {Call} call */
function marked(call) {
  const { tool } = call.facts;
  return `${words(call.name)}${typeof tool === "string" ? `: ${tool}` : ""}`;
}

/**
 * @param {HTMLElement} element
 * @param {number} at
 */
function placed(element, at) {
  measure(element, "left", share(at));
  return element;
}

/** @param {number} value */
function share(value) {
  return `${(value * 100).toFixed(3)}%`;
}
