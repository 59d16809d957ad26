// Maps times to places on a line on which long stretches without any call are folded.

/** @typedef {{from: number, to: number, at: number, size: number, folded: boolean}} Piece */

const LEAST_GAP = 400; // milliseconds; a gap up to this is never folded
const SHARE = 0.12; // of the busy time: a gap longer than that is folded
const LAST_TICK = 0.94; // of the line: the label of a tick further on would not fit
const DECIMAL = 5000; // milliseconds up to which the step between ticks is 1, 2 or 5 times a power of ten
const DAY = 86_400_000;
const CLOCK = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400].map((seconds) => seconds * 1000);
const FOLD = 0.04; // of the busy time: how wide a fold is

export class Scale {
  /**
   * @param {[number, number][]} spans when something happened, sorted by their beginning
   * @param {number} from
   * @param {number} to
   */
  constructor(spans, from, to) {
    const busy = merged(spans, from, Math.max(to, from + 1));
    const total = busy.reduce((sum, [a, b]) => sum + b - a, 0);
    const most = Math.max(LEAST_GAP, total * SHARE);
    const fold = Math.max(most * 0.25, total * FOLD);
    /** @type {Piece[]} */
    this.pieces = [];
    this.size = 0;
    let end = from;
    for (const [a, b] of [...busy, /** @type {[number, number]} */ ([Math.max(to, from + 1), Math.max(to, from + 1)])]) {
      if (a - end > most) this.add(end, a, fold, true);
      else if (a > end) this.add(end, a, a - end, false);
      if (b > a) this.add(a, b, b - a, false);
      end = Math.max(end, b);
    }
    if (!this.pieces.length) this.add(from, from + 1, 1, false);
  }

  /**
   * @param {number} from
   * @param {number} to
   * @param {number} size
   * @param {boolean} folded
   */
  add(from, to, size, folded) {
    const last = this.pieces.at(-1);
    if (last && !last.folded && !folded) {
      last.to = to;
      last.size += size;
    } else this.pieces.push({ from, to, at: this.size, size, folded });
    this.size += size;
  }

  /**
   * Where a moment is, from 0 to 1.
   *
   * @param {number} moment
   */
  place(moment) {
    let low = 0;
    let high = this.pieces.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.pieces[middle]?.from ?? 0) <= moment) low = middle;
      else high = middle - 1;
    }
    const piece = this.pieces[low];
    if (!piece) return 0;
    const inside = Math.min(1, Math.max(0, (moment - piece.from) / Math.max(1e-9, piece.to - piece.from)));
    return (piece.at + inside * piece.size) / this.size;
  }

  /** The folds: where they are, and how long each is. */
  folds() {
    return this.pieces
      .filter((piece) => piece.folded)
      .map((piece) => ({ at: piece.at / this.size, size: piece.size / this.size, span: piece.to - piece.from }));
  }

  /**
   * Round moments for the labels of the line, as milliseconds since *zero*.
   *
   * @param {number} zero
   * @param {number} many about how many
   */
  ticks(zero, many) {
    const busy = this.pieces.filter((piece) => !piece.folded);
    const step = round(busy.reduce((sum, piece) => sum + piece.size, 0) / Math.max(1, many));
    /** @type {{at: number, since: number}[]} */
    const ticks = [];
    for (const piece of busy) {
      if (piece !== busy[0]) ticks.push({ at: piece.at / this.size, since: piece.from - zero });
      for (let since = Math.ceil((piece.from - zero) / step) * step; since <= piece.to - zero; since += step) {
        const at = this.place(zero + since);
        if (at - (ticks.at(-1)?.at ?? -1) > 0.5 / many) ticks.push({ at, since });
      }
    }
    return ticks.filter(({ at }) => at < LAST_TICK);
  }
}

/**
 * @param {[number, number][]} spans
 * @param {number} from
 * @param {number} to
 */
function merged(spans, from, to) {
  /** @type {[number, number][]} */
  const made = [];
  for (const [begin, end] of spans) {
    const [a, b] = [Math.max(from, begin), Math.min(to, end)];
    const last = made.at(-1);
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else if (b >= a) made.push([a, b]);
  }
  return made;
}

/**
 * The next round length of time: 1, 2 or 5 times a power of ten, and a longer one as clocks divide it.
 *
 * @param {number} value milliseconds
 */
function round(value) {
  if (value > DECIMAL) return CLOCK.find((each) => each >= value) ?? Math.ceil(value / DAY) * DAY;
  const power = 10 ** Math.floor(Math.log10(Math.max(1e-3, value)));
  return ([1, 2, 5, 10].find((each) => each * power >= value) ?? 10) * power;
}
