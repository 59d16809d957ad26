// Rows of a table; only those in sight, and the one with the focus, exist as elements. A row keeps its element, so that
// the focus, a selection of text and the pointer stay on what they were on.

import { arrange, attr, h, measure, on } from "./dom.js";

const BEYOND = 12; // rows that exist above and below those in sight
const MOST_PRINTED = 2000; // rows; of a longer table only those in sight are printed

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
    this.above = space();
    this.below = space();
    this.beside = space(); // between the rows in sight and the one with the focus
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
    addEventListener("beforeprint", () => this.items.length <= MOST_PRINTED && this.fill(0, this.items.length), { signal: gone });
    addEventListener("afterprint", () => this.draw(), { signal: gone });
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
    const staysAtEnd = follows && this.atEnd();
    this.items = items;
    attr(this.table, "aria-rowcount", items.length + 1);
    this.draw();
    if (!staysAtEnd) return;
    scroller.scrollTop = scroller.scrollHeight;
    this.draw();
  }

  atEnd() {
    const { scroller } = this;
    return scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 4;
  }

  /**
   * Calls *change*, which adds or removes items before those in sight, and keeps these where they are; a user whom
   * *change* keeps at the end stays there.
   *
   * @param {() => void} change
   */
  hold(change) {
    const { scroller, items: before } = this;
    const top = scroller.scrollTop;
    const wasAtEnd = this.atEnd();
    const was = Math.max(0, Math.floor((top - this.start()) / this.height()));
    change();
    if (wasAtEnd && this.atEnd()) return;
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
    const first = Math.max(0, Math.min(length, Math.floor(top / height)) - BEYOND);
    this.fill(first, Math.max(first, Math.min(length, Math.ceil((top + this.scroller.clientHeight) / height) + BEYOND)));
    if (this.last >= length - BEYOND) this.near?.();
  }

  /**
   * Draws the rows from *first* until before *last*, and the one with the focus: a list that changes may move it away.
   *
   * @param {number} first
   * @param {number} last
   */
  fill(first, last) {
    [this.first, this.last] = [first, last];
    const held = this.held();
    const kept = held === undefined ? -1 : this.items.findIndex((item) => this.key(item) === held.key);
    const isAbove = kept >= 0 && kept < first;
    const isBelow = kept >= last;
    /** @type {Map<string | number, Row<Item>>} */
    const made = new Map();
    const rows = this.items.slice(first, last).map((item, at) => this.row(item, first + at, made));
    const [above, beside] = isAbove ? [kept, first - kept - 1] : [first, isBelow ? kept - last : 0];
    const below = this.items.length - (isBelow ? kept + 1 : last);
    for (const [each, many] of /** @type {const} */ ([[this.above, above], [this.beside, beside], [this.below, below]])) measure(each, "height", `${many * this.height()}px`);
    const item = this.items[kept];
    const away = item !== undefined && (isAbove || isBelow) ? [this.row(item, kept, made)] : [];
    this.made = made;
    arrange(this.body, [this.above, ...(isAbove ? [...away, this.beside] : []), ...rows, ...(isBelow ? [this.beside, ...away] : []), this.below]);
    if (held !== undefined && kept < 0) this.focus(Math.min(held.index, this.items.length - 1)); // its item is gone
  }

  /**
   * The element of an item, which is made if it does not exist.
   *
   * @param {Item} item
   * @param {number} index
   * @param {Map<string | number, Row<Item>>} made where it is noted
   */
  row(item, index, made) {
    const key = this.key(item);
    const row = this.made.get(key) ?? this.make();
    attr(row.root, "aria-rowindex", index + 2);
    row.set(item);
    made.set(key, row);
    return row.root;
  }

  /** The row that the focus is in: the key of its item, and where this was when it was drawn. */
  held() {
    const place = document.activeElement?.closest("tr");
    for (const [key, row] of this.made) if (row.root === place) return { key, index: Number(place.getAttribute("aria-rowindex")) - 2 };
    return undefined;
  }

  /** Fills the rows in sight again. */
  refresh() {
    for (const item of this.items.slice(this.first, this.last)) this.made.get(this.key(item))?.set(item);
  }

  /** The item that the focus is on, if it is on one. */
  focused() {
    const held = this.held();
    return held && this.items.find((item) => this.key(item) === held.key);
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
   * Moves the focus to the row of this key; false if there is none.
   *
   * @param {string | number} key
   */
  land(key) {
    const index = this.items.findIndex((item) => this.key(item) === key);
    this.focus(index);
    return index >= 0;
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

/** A row that is as high as the rows that it stands for. */
function space() {
  return h("tr", { class: "space", "aria-hidden": "true" }, h("td"));
}
