// Parts that several screens are made of: lists of lines, their filters, facts, states, and what to show without data.

import { ApiError } from "./api.js";
import { attr, button, fill, h, on } from "./dom.js";
import { said } from "./format.js";
import { sign, tone } from "./icons.js";
import { say } from "./say.js";

const PAUSE = 700; // milliseconds without a key, after which what a filter has found is said

/** @typedef {string[][]} Columns the class of each, and its title */
/** @typedef {import("./dom.js").Child} Child */

/**
 * A field for a text to search for.
 *
 * @param {string} placeholder
 * @param {string} label for screen readers
 * @param {string} [value]
 */
export function field(placeholder, label, value = "") {
  return h("input", { type: "search", placeholder, "aria-label": label, value, spellcheck: "false" });
}

/**
 * The button that `f` presses: it shows only some of the lines.
 *
 * @param {string} label
 * @param {() => void} press
 */
export function toggle(label, press) {
  return button({ class: "toggle", "aria-pressed": "false" }, press, `${label} `, h("kbd", { "aria-hidden": "true" }, "f"));
}

/**
 * Shows whether a button is pressed.
 *
 * @param {HTMLElement} element
 * @param {boolean} isPressed
 */
export function pressed(element, isPressed) {
  attr(element, "aria-pressed", String(isPressed));
}

/**
 * A field for a text to search for in names, and a button that shows only what is failing.
 *
 * @param {() => void} draw called when they change
 * @param {object} words
 * @param {string} words.placeholder
 * @param {string} words.label for screen readers
 * @param {string} words.only what the button says
 * @param {() => string} words.found says how many there are now, for screen readers
 * @param {URLSearchParams} [query] what they begin with
 * @param {(filter: Record<string, string>) => void} [note] keeps what they are set to
 */
export function filterControls(draw, { placeholder, label, only: title, found }, query, note) {
  const search = field(placeholder, label, query?.get("text") ?? "");
  const failing = toggle(title, () => failed());
  let only = query?.get("failing") === "1";
  let timer = 0;
  pressed(failing, only);
  on(search, "input", change);

  function failed() {
    only = !only;
    change();
  }

  function change() {
    pressed(failing, only);
    draw();
    note?.({ text: search.value.trim(), failing: only ? "1" : "" });
    clearTimeout(timer);
    timer = setTimeout(() => say(found()), PAUSE);
  }

  return {
    filters: [search, failing],
    search,
    failed,
    /**
     * @param {string} name
     * @param {boolean} isFailing
     */
    takes: (name, isFailing) => (!only || isFailing) && name.toLowerCase().includes(search.value.trim().toLowerCase()),
    /** Clears them; false if there is nothing to clear. */
    back() {
      if (!search.value && !only) return false;
      search.value = "";
      only = false;
      change();
      return true;
    },
  };
}

/**
 * A screen of lines: a heading with a summary and filters, and a table, or words if there is no line.
 *
 * @param {object} what
 * @param {string} what.title
 * @param {string} what.label of the table
 * @param {string} what.kind of the table, its class
 * @param {Columns} what.columns
 * @param {Node[]} what.filters
 */
export function listing({ title, label, kind, columns, filters }) {
  const summary = h("p", { class: "summary" });
  const head = h("thead", {}, h("tr", { "aria-rowindex": "1" }, ...columns.map(([name, words]) => h("th", { scope: "col", class: name }, words))));
  const table = h("table", { class: `lines ${kind}`, "aria-label": label }, head);
  const empty = h("div", { class: "empty", hidden: true });
  const scroller = h("div", { class: "scroll", tabindex: "-1" }, table, empty);
  const top = h("header", { class: "head" }, h("h1", {}, title), summary, h("span", { class: "filters" }, ...filters));
  const root = h("section", { class: "screen" }, top, scroller);
  return {
    root, scroller, table, head, summary,
    /**
     * Shows the table if *words* is null, else these words.
     *
     * @param {Node[] | null} words
     */
    say(words) {
      attr(table, "hidden", words !== null);
      attr(empty, "hidden", words === null || words.length === 0);
      fill(empty, ...(words ?? []));
    },
  };
}

/**
 * A row of cells, each with the class and title of its column.
 *
 * @param {Columns} columns
 * @param {HTMLElement[]} cells one for each column
 */
export function line(columns, cells) {
  for (const [index, cell] of cells.entries()) {
    attr(cell, "class", columns[index]?.[0]);
    attr(cell, "data-label", columns[index]?.[1]);
  }
  return h("tr", {}, ...cells);
}

/**
 * A fact and its name.
 *
 * @param {string} label
 * @param {...Child} value
 */
export function fact(label, ...value) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, ...value));
}

/**
 * Shows a state by its shape, its word and its tone.
 *
 * @param {HTMLElement} element
 * @param {string} state
 * @param {string} [kind] the class of the element
 */
export function show(element, state, kind = "state") {
  fill(element, sign(state), said(state));
  attr(element, "class", `${kind} ${tone(state)}`);
}

/**
 * What to show if there is no line.
 *
 * @param {boolean} complete whether everything is known
 * @param {boolean} filtered whether there are lines that a filter hides
 * @param {string} kind the noun for a line
 * @param {() => Node[]} hint what the user can do if there is nothing at all
 */
export function nothing(complete, filtered, kind, hint) {
  if (!complete) return [h("p", {}, "Waiting for the server…")];
  return filtered ? [h("p", {}, `No ${kind} is like this.`), h("p", {}, h("kbd", {}, "esc"), " shows all of them.")] : hint();
}

/**
 * What to show if something could not be fetched.
 *
 * @param {unknown} problem
 * @param {string} unknown what to say if there is no such thing
 * @param {Node} all the link to those that exist
 */
export function excuse(problem, unknown, all) {
  const told = problem instanceof ApiError ? problem.message : "The server does not answer; the page tries again.";
  return [h("p", {}, isUnknown(problem) ? unknown : told), h("p", {}, all)];
}

/** @param {unknown} problem */
export function isUnknown(problem) {
  return problem instanceof ApiError && problem.status === 404;
}
