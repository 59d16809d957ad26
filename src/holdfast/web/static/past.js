// The events of one run, as far back as the user wants to see them: the last ones first, earlier ones on demand.
// They are fetched by their sequences, without gaps, so nothing is lost and nothing comes twice.

import { get, query } from "./api.js";
import { Calls } from "./calls.js";
import { encoded } from "./routes.js";

/** @typedef {import("./types.js").RunEvent} RunEvent */
/** @typedef {import("./types.js").EventPage} EventPage */

export const PAGE = 1000;

export class Past {
  /**
   * @param {string} id of the run
   * @param {AbortSignal} gone
   */
  constructor(id, gone) {
    this.id = id;
    this.gone = gone;
    this.calls = new Calls();
    this.kept = 0; // the first event that the store still has
    this.reaching = false;
  }

  /** The sequence of the first event that is here. */
  get oldest() {
    return this.calls.events[0]?.sequence ?? this.kept;
  }

  /** Whether the store has earlier events. */
  get isPart() {
    return this.oldest > this.kept;
  }

  /**
   * Takes in the events that came since; the first time, only the last ones of the *total*.
   *
   * @param {number} total
   */
  async later(total) {
    if (this.calls.last < 0) this.calls.last = Math.max(-1, total - 1 - PAGE);
    while (this.take(await this.page(this.calls.last, PAGE)));
  }

  /**
   * Takes in earlier events, from *sequence* on; false if another such call is under way.
   *
   * @param {number} sequence
   */
  async reach(sequence) {
    if (this.reaching) return false;
    this.reaching = true;
    try {
      /** @type {RunEvent[]} */
      const found = [];
      let last = Math.max(this.kept, sequence) - 1;
      while (last < this.oldest - 1) {
        const page = await this.page(last, Math.min(PAGE, this.oldest - 1 - last));
        if (!page.events.length) break;
        for (const event of page.events) found.push(event);
        last = page.events.at(-1)?.sequence ?? last;
      }
      const { events } = this.calls;
      this.calls = new Calls();
      this.calls.add(found);
      this.calls.add(events);
      return true;
    } finally {
      this.reaching = false;
    }
  }

  /**
   * @param {number} after
   * @param {number} limit
   * @returns {Promise<EventPage>}
   */
  async page(after, limit) {
    const page = await get(`/api/runs/${encoded(this.id)}/events${query({ after, limit })}`, this.gone);
    this.kept = page.first_available ?? 0;
    return page;
  }

  /**
   * Takes in the events of a page; true if there are later ones.
   *
   * @param {EventPage} page
   */
  take(page) {
    this.calls.add(page.events);
    return page.has_more && page.events.length > 0;
  }
}
