// Rows of a table; only those in sight exist as elements. A row keeps its element while it is in sight, so that the
// focus, a selection of text and the pointer stay on what they were on.

import { arrange, attr, h, measure, on } from "./dom.js";

const BEYOND = 12; // rows that exist above and below those in sight

/**
 * @template Item
 * @typedef {{root: HTMLTableRowElement, set: (item: Item) => void}} Row
 */

/** @template Item */
export class Rows {
  /**
   * @param {object} options
   * @param {HTMLElement} options.scroller
   * @param {HTMLTableElement} options.table its style says how high a row is, as `--row`
   * @param {(item: Item) => string | number} options.key
   * @param {() => Row<Item>} options.make
   * @param {AbortSignal} options.gone once the table is not shown any more
   * @param {() => void} [options.near] called when the end comes near
   * @param {() => void} [options.above] called when the user scrolls to the beginning
   */
  constructor({ scroller, table, key, make, gone, near, above }) {
    this.scroller = scroller;
    this.table = table;
    this.key = key;
    this.make = make;
    this.near = near;
    this.body = h("tbody");
    table.append(this.body);
    this.above = h("tr", { class: "space", "aria-hidden": "true" }, h("td"));
    this.below = h("tr", { class: "space", "aria-hidden": "true" }, h("td"));
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string | number, Row<Item>>} */
    this.made = new Map();
    this.first = 0;
    this.last = 0;
    this.due = 0;
    /** @type {string | number | null} */
    this.current = null; // the key of the row that last had the focus; it may be out of sight
    on(scroller, "scroll", () => this.soon(), { passive: true });
    if (above) on(scroller, "scroll", () => scroller.scrollTop < BEYOND * this.height() && above(), { passive: true });
    const resized = new ResizeObserver(() => this.soon());
    resized.observe(scroller);
    gone.addEventListener("abort", () => {
      resized.disconnect();
      cancelAnimationFrame(this.due);
    });
  }

  /**
   * @param {Item[]} items
   * @param {boolean} [follows] whether a user who is at the end stays at the end
   */
  set(items, follows = false) {
    const { scroller } = this;
    const atEnd = follows && items.length > this.items.length && scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 4;
    this.items = items;
    attr(this.table, "aria-rowcount", items.length + 1);
    this.draw();
    if (!atEnd) return;
    scroller.scrollTop = scroller.scrollHeight;
    this.draw();
  }

  /**
   * Calls *change*, which puts other items before these, and keeps what is in sight where it is.
   *
   * @param {() => void} change
   */
  hold(change) {
    const { scroller, items: before } = this;
    const top = scroller.scrollTop;
    const was = Math.max(0, Math.floor((top - this.start()) / this.height()));
    change();
    const places = new Map(this.items.map((item, index) => [this.key(item), index]));
    const held = before.findIndex((item, index) => index >= was && places.has(this.key(item)));
    const now = before[held] === undefined ? undefined : places.get(this.key(before[held]));
    if (now === undefined) return;
    scroller.scrollTop = top + (now - held) * this.height();
    this.draw();
  }

  soon() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.draw();
    });
  }

  height() {
    return parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 28;
  }

  /** Where the table begins in the scrolled content, in pixels. */
  start() {
    return this.table.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
  }

  /** Draws the rows in sight. */
  draw() {
    const height = this.height();
    const head = this.table.tHead?.offsetHeight ?? 0;
    const top = this.scroller.scrollTop - this.start() - head;
    const { length } = this.items;
    this.first = Math.max(0, Math.min(length, Math.floor(top / height)) - BEYOND);
    this.last = Math.min(length, Math.ceil((top + this.scroller.clientHeight) / height) + BEYOND);
    measure(this.above, "height", `${this.first * height}px`);
    measure(this.below, "height", `${Math.max(0, length - this.last) * height}px`);
    /** @type {Map<string | number, Row<Item>>} */
    const made = new Map();
    for (const [index, item] of this.items.slice(this.first, this.last).entries()) {
      const key = this.key(item);
      const row = this.made.get(key) ?? this.make();
      attr(row.root, "aria-rowindex", this.first + index + 2);
      row.set(item);
      made.set(key, row);
    }
    this.made = made;
    arrange(this.body, [this.above, ...[...made.values()].map((row) => row.root), this.below]);
    if (this.last >= length - BEYOND) this.near?.();
  }

  /** Fills the rows in sight again. */
  refresh() {
    for (const item of this.items.slice(this.first, this.last)) {
      this.made.get(this.key(item))?.set(item);
    }
  }

  /** The item that the focus is on, if it is on one. */
  focused() {
    const place = document.activeElement?.closest("tr");
    for (const [key, row] of this.made) if (row.root === place) return this.items.find((item) => this.key(item) === key);
    return undefined;
  }

  /**
   * Moves the focus to the link of the row *delta* rows on; if it never was on a row, of the first or the last.
   *
   * @param {number} delta
   */
  move(delta) {
    if (!this.items.length) return;
    const now = this.focused() ?? this.items.find((item) => this.key(item) === this.current);
    const from = now === undefined ? (delta > 0 ? -1 : this.items.length) : this.items.indexOf(now);
    this.focus(Math.max(0, Math.min(this.items.length - 1, from + delta)));
  }

  /** @param {number} index */
  focus(index) {
    const item = this.items[index];
    if (item === undefined) return;
    this.reveal(index);
    this.current = this.key(item);
    this.made.get(this.key(item))?.root.querySelector("a")?.focus({ preventScroll: true });
  }

  /**
   * Scrolls until a row is in sight.
   *
   * @param {number} index
   */
  reveal(index) {
    const height = this.height();
    const head = this.table.tHead?.offsetHeight ?? 0;
    const top = this.start() + index * height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + height + head > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = top + height + head - this.scroller.clientHeight;
    this.draw();
  }

  /**
   * Scrolls until the row of this key is in sight, if there is one.
   *
   * @param {string | number} key
   */
  show(key) {
    const index = this.items.findIndex((item) => this.key(item) === key);
    if (index >= 0) this.reveal(index);
  }
}
