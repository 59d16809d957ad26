// The one feed of a page: server-sent events read with fetch, since only fetch lets us say where we stopped.
// Runs in a shared worker where there is one, so that many tabs share one connection; knows nothing of the page.

import { complaint } from "./api.js";

const FIRST_WAIT = 250; // milliseconds before the second try
const LONGEST_WAIT = 5000;
const SILENCE = 45_000; // the server gives a sign more often than this; a connection without one is dead

/** @typedef {{id: string, type: string, data: string}} Message */
/** @typedef {"connecting" | "live" | "waiting" | "closed" | "refused"} Standing */

export class Feed {
  /**
   * @param {string} url
   * @param {(message: Message) => void} hear
   * @param {(standing: Standing, detail: string) => void} stand
   */
  constructor(url, hear, stand) {
    this.url = url;
    this.hear = hear;
    this.stand = stand;
    this.last = "";
    /** @type {AbortController | null} */
    this.open = null;
  }

  /** Connects, and goes on from where it was; does nothing if it is connected. */
  start() {
    if (this.open !== null) return;
    this.open = new AbortController();
    void this.run(this.open.signal);
  }

  /** Closes the connection; remembers where it was. */
  stop() {
    if (this.open === null) return;
    this.open.abort();
    this.open = null;
    this.stand("closed", "");
  }

  /** @param {AbortSignal} stopped */
  async run(stopped) {
    let wait = FIRST_WAIT;
    while (!stopped.aborted) {
      this.stand("connecting", "");
      try {
        await this.read(stopped, () => {
          wait = FIRST_WAIT;
        });
      } catch (error) {
        if (stopped.aborted) return;
        if (error instanceof Refused) {
          this.open = null;
          this.stand("refused", error.message);
          return;
        }
        this.stand("waiting", error instanceof Error ? error.message : "");
      }
      await pause(wait * (0.75 + Math.random() / 2), stopped);
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  }

  /**
   * @param {AbortSignal} stopped
   * @param {() => void} connected
   */
  async read(stopped, connected) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE);
    const stop = () => silent.abort();
    stopped.addEventListener("abort", stop);
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream" };
      if (this.last !== "") headers["Last-Event-ID"] = this.last;
      const answer = await fetch(this.url, { headers, signal: silent.signal, cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) throw new Refused(await complaint(answer));
      if (!answer.ok || answer.body === null) throw new Error(`the server answered ${answer.status}`);
      this.stand("live", "");
      connected();
      const parser = new Parser((message) => {
        if (message.id !== "") this.last = message.id;
        this.hear(message);
      });
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), SILENCE);
        parser.take(decoder.decode(value, { stream: true }));
      }
    } finally {
      clearTimeout(timer);
      stopped.removeEventListener("abort", stop);
    }
  }
}

/** Puts lines together into messages, as the standard for server-sent events says. */
export class Parser {
  /** @param {(message: Message) => void} hear */
  constructor(hear) {
    this.hear = hear;
    /** @type {string[]} */
    this.parts = []; // of a line that has not ended; joined once, so that a long line costs no more than its length
    this.id = "";
    this.type = "";
    /** @type {string[]} */
    this.data = [];
  }

  /** @param {string} chunk */
  take(chunk) {
    const lines = chunk.split("\n");
    for (const [index, line] of lines.entries()) {
      this.parts.push(line);
      if (index === lines.length - 1) return;
      const whole = this.parts.join("");
      this.parts = [];
      this.line(whole.endsWith("\r") ? whole.slice(0, -1) : whole);
    }
  }

  /** @param {string} line */
  line(line) {
    if (line === "") {
      if (this.data.length) this.hear({ id: this.id, type: this.type || "message", data: this.data.join("\n") });
      this.type = "";
      this.data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.type = value;
    else if (field === "id") this.id = value;
  }
}

class Refused extends Error {}

/**
 * @param {number} milliseconds
 * @param {AbortSignal} stopped
 * @returns {Promise<void>}
 */
function pause(milliseconds, stopped) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    stopped.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
