// Parts that several screens are made of: what filters, heads and cells of tables, facts, and states.

import { attr, button, fill, h } from "./dom.js";
import { said } from "./format.js";
import { sign, tone } from "./icons.js";

/** @typedef {string[][]} Columns the class of each, and its title */
/** @typedef {import("./dom.js").Child} Child */

/**
 * Where a text to look for is typed.
 *
 * @param {string} placeholder
 * @param {string} label for those who listen
 * @param {string} [value]
 */
export function field(placeholder, label, value = "") {
  return h("input", { type: "search", placeholder, "aria-label": label, value, spellcheck: "false" });
}

/**
 * The button that `f` presses: it leaves out all but some lines.
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
 * The heading of a screen, what is summed up in it, and what filters it.
 *
 * @param {string} title
 * @param {Node} summary
 * @param {...Node} filters
 */
export function heading(title, summary, ...filters) {
  return h("header", { class: "head" }, h("h1", {}, title), summary, h("span", { class: "filters" }, ...filters));
}

/** @param {Columns} columns */
export function heads(columns) {
  return h("thead", {}, h("tr", { "aria-rowindex": "1" }, ...columns.map(([name, title]) => h("th", { scope: "col", class: name }, title))));
}

/**
 * A row of cells that know their columns.
 *
 * @param {Columns} columns
 * @param {HTMLElement[]} cells as many
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
 * What is told where there is no line to show.
 *
 * @param {boolean} complete whether everything is known
 * @param {boolean} filtered whether there are lines that are left out
 * @param {string} kind of what there is none
 * @param {() => Node[]} hint what to do where there is nothing at all
 */
export function nothing(complete, filtered, kind, hint) {
  if (!complete) return [h("p", {}, "Waiting for the server…")];
  return filtered ? [h("p", {}, `No ${kind} is like this.`), h("p", {}, h("kbd", {}, "esc"), " shows all of them.")] : hint();
}
