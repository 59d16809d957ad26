// What the feed has said so far: tools, servers and the runs that changed last. Lines are replaced, never modified, so
// a copy of the maps is a picture that stands still.

/** @typedef {import("./types.js").ToolLine} ToolLine */
/** @typedef {import("./types.js").ServerLine} ServerLine */
/** @typedef {import("./types.js").RunLine} RunLine */

/**
 * @typedef {object} Told
 * @property {number} [at_ms]
 * @property {ToolLine[]} [tools]
 * @property {string[]} [gone]
 * @property {ServerLine[]} [servers]
 * @property {RunLine[]} [runs]
 * @property {boolean} [read_only]
 * @property {string} [code] of a note
 * @property {string} [message] of a note
 */

const MOST_RUNS = 500;

export class Picture {
  constructor() {
    /** @type {Map<string, ToolLine>} */
    this.tools = new Map();
    /** @type {Map<string, RunLine>} */
    this.runs = new Map();
    /** @type {ServerLine[]} */
    this.servers = [];
    /** @type {Map<string, number>} */
    this.heard = new Map(); // when the last news of each tool came, by the server's clock
    this.ahead = Date.now() - performance.now(); // how far the server's clock is ahead of performance.now()
    this.readOnly = false;
    this.complete = false; // true once the feed has sent everything
  }

  /**
   * Takes in a message of the feed.
   *
   * @param {string} type
   * @param {Told} told
   */
  take(type, told) {
    if (told.at_ms) {
      const ahead = told.at_ms - performance.now();
      this.ahead = type === "hello" ? ahead : Math.max(ahead, this.ahead); // missed messages come late with an old time
    }
    if (type === "hello") {
      this.tools = new Map();
      this.heard = new Map();
      this.runs = new Map();
      this.complete = true;
      this.readOnly = told.read_only ?? false;
    }
    for (const line of told.tools ?? []) {
      this.tools.set(line.name, line);
      this.heard.set(line.name, told.at_ms ?? this.now());
    }
    for (const name of told.gone ?? []) {
      this.tools.delete(name);
      this.heard.delete(name);
    }
    if (told.servers) this.servers = told.servers;
    for (const run of told.runs ?? []) {
      this.runs.delete(run.id); // the runs that changed last stand at the end
      this.runs.set(run.id, run);
    }
    for (const id of this.runs.keys()) {
      if (this.runs.size <= MOST_RUNS) break;
      this.runs.delete(id);
    }
  }

  /** The time of the server, in milliseconds since the epoch. */
  now() {
    return performance.now() + this.ahead;
  }

  /**
   * Milliseconds since the last news of a tool.
   *
   * @param {string} name
   */
  since(name) {
    return this.now() - (this.heard.get(name) ?? 0);
  }

  /** The whole picture, as the feed would send it now. */
  whole() {
    const left = (/** @type {ToolLine} */ line) => (line.remaining_ms === null ? null : Math.max(0, line.remaining_ms - this.since(line.name)));
    return {
      at_ms: this.now(),
      tools: [...this.tools.values()].map((line) => ({ ...line, remaining_ms: left(line) })),
      servers: this.servers,
      runs: [...this.runs.values()],
      read_only: this.readOnly,
    };
  }

  copy() {
    const copy = new Picture();
    Object.assign(copy, this, { tools: new Map(this.tools), runs: new Map(this.runs) });
    return copy;
  }
}

const SEVERITY = /** @type {Record<string, number>} */ ({ open: 0, half_open: 1, closed: 2, off: 3 });

/**
 * The tools, the worst first, as the server orders them.
 *
 * @param {Iterable<ToolLine>} tools
 */
export function worstFirst(tools) {
  return [...tools].sort(
    (a, b) =>
      Number(b.refuses) - Number(a.refuses) ||
      (SEVERITY[a.state] ?? 1) - (SEVERITY[b.state] ?? 1) ||
      (a.name < b.name ? -1 : a.name > b.name ? 1 : 0),
  );
}
