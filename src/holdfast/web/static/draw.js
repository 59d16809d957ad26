// Small drawings: the sparkline of a tool, its distance to the trip line, its latencies; and how long ago something was.

import { attr, h, measure, s, text } from "./dom.js";
import { ago, bare, count, span } from "./format.js";

const WIDE = 90;
const HIGH = 18;
const ROOM = 60; // samples, at most

/**
 * An element that says how long ago something was; `age` updates it.
 *
 * @param {number | null} at
 * @param {number} now
 */
export function since(at, now) {
  return h("span", { "data-at": at }, ago(at, now));
}

/**
 * Updates every element of `since` below *root*.
 *
 * @param {Element} root
 * @param {number} now
 */
export function age(root, now) {
  for (const each of root.querySelectorAll("[data-at]")) text(each, ago(Number(each.getAttribute("data-at")), now));
}

/** A sparkline, and a function that sets its samples. */
export function sparkline() {
  const line = s("path", { class: "line" });
  const area = s("path", { class: "area" });
  const root = s("svg", { class: "spark", viewBox: `0 0 ${WIDE} ${HIGH}`, "aria-hidden": "true", preserveAspectRatio: "none" }, area, line);
  return {
    root,
    /** @param {number[]} samples */
    set(samples) {
      const most = Math.max(1, ...samples);
      const step = WIDE / (ROOM - 1);
      const first = WIDE - (samples.length - 1) * step;
      const points = samples.map((value, index) => `${(first + index * step).toFixed(1)} ${(HIGH - 1 - (value / most) * (HIGH - 3)).toFixed(1)}`);
      const path = points.length > 1 && samples.some((value) => value > 0) ? `M${points.join("L")}` : `M0 ${HIGH - 1}H${WIDE}`;
      attr(line, "d", path);
      attr(area, "d", points.length > 1 ? `${path}V${HIGH}H${Math.max(0, first).toFixed(1)}Z` : "");
      attr(root, "class", points.length > 1 && samples.some((value) => value > 0) ? "spark" : "spark still");
    },
  };
}

/** A bar with the line at which a circuit opens, and a function that sets both. */
export function meter() {
  const done = h("span", { class: "done" });
  const line = h("span", { class: "trip" });
  const root = h("span", { class: "meter", "aria-hidden": "true" }, done, line);
  return {
    root,
    /**
     * @param {number} share of the whole bar, 0 to 1
     * @param {number | null} trip where the line is, 0 to 1
     */
    set(share, trip) {
      measure(done, "width", `${Math.min(100, share * 100).toFixed(1)}%`);
      measure(line, "left", `${Math.min(100, (trip ?? 0) * 100).toFixed(1)}%`);
      attr(line, "hidden", trip === null);
      const near = trip === null ? share : share / trip;
      attr(root, "class", `meter ${near >= 1 ? "bad" : near >= 0.5 ? "warn" : "calm"}`);
    },
  };
}

/**
 * Latencies as bars, with their numbers as text for screen readers.
 *
 * @param {[number | null, number][]} buckets upper bound in milliseconds, and how many
 * @param {{p50: number | null, p95: number | null, p99: number | null}} marks
 */
export function histogram(buckets, marks) {
  const filled = buckets.map(([, n]) => n > 0);
  const from = Math.max(0, filled.indexOf(true) - 1);
  const shown = buckets.slice(from, filled.lastIndexOf(true) + 2);
  const most = Math.max(1, ...shown.map(([, n]) => n));
  const bars = shown.map(([upper, n], index) => {
    const below = shown[index - 1]?.[0] ?? buckets[from - 1]?.[0] ?? 0;
    const bar = h("span", { class: "bar" });
    measure(bar, "height", `${((n / most) * 100).toFixed(1)}%`);
    const flags = Object.entries(marks).filter(([, at]) => at !== null && at > below && (upper === null || at <= upper));
    return h(
      "li",
      { class: n ? "full" : "none" },
      h("span", { class: "flags", "aria-hidden": "true" }, ...flags.map(([name]) => h("span", {}, name))),
      h("span", { class: "room", "aria-hidden": "true" }, bar),
      h("span", { class: "upper", "aria-hidden": "true" }, upper === null ? "more" : bare(upper)),
      h("span", { class: "unseen" }, `${upper === null ? `over ${span(below)}` : `up to ${span(upper)}`}: ${count(n)}`),
    );
  });
  return h("ol", { class: "histogram", "aria-label": "Latencies" }, ...bars);
}
