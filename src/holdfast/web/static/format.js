// Numbers, times and foreign text as people read them.

const DASH = "–";
const SAID = /** @type {Record<string, string>} */ ({ half_open: "half-open", denied: "refused" });
const PICTURES = 0x2400; // the symbols for control characters begin here
const JOINED = String.raw`[\p{Script=Arabic}\p{Script=Bengali}\p{Script=Devanagari}\p{Script=Gujarati}\p{Script=Gurmukhi}\p{Script=Kannada}\p{Script=Malayalam}\p{Script=Oriya}\p{Script=Sinhala}\p{Script=Tamil}\p{Script=Telugu}\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]`;
const UNSEEN = new RegExp(
  String.raw`[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]` +
    String.raw`|(?<!${JOINED})[\u200c\u200d]|[\u200c\u200d](?!${JOINED})`, // joiners are unseen unless they join
  "gu",
);
export const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * Foreign text with everything visible: control characters as symbols, marks of text direction as escapes.
 *
 * @param {string} value
 */
export function visible(value) {
  return value.replace(UNSEEN, shown).replace(LONE, escaped);
}

/**
 * Foreign text in one line.
 *
 * @param {string} value
 * @param {number} [most] characters
 */
export function oneLine(value, most = 300) {
  const cut = value.length > most ? `${start(value, most)}…` : value;
  return visible(cut.replace(/\s*[\r\n\t]+\s*/g, " ⏎ "));
}

/**
 * The first characters of a text; a surrogate pair, such as an emoji, is never cut in half.
 *
 * @param {string} value
 * @param {number} most characters
 */
export function start(value, most) {
  return value.slice(0, most).replace(/[\ud800-\udbff]$/, "");
}

/** @param {string} mark */
function shown(mark) {
  const code = mark.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(PICTURES + code);
  return code === 0x7f ? "␡" : escaped(mark);
}

/** @param {string} mark */
function escaped(mark) {
  return `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/**
 * Milliseconds as a length of time.
 *
 * @param {number | null | undefined} value
 */
export function span(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 0.9995) return value <= 0 ? "0 ms" : `${Math.max(1, Math.round(value * 1000))} µs`;
  if (value < 999.5) return `${value < 9.95 ? trim(value.toFixed(1)) : Math.round(value)} ms`;
  const seconds = value / 1000;
  if (seconds < 59.95) return `${seconds < 9.995 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

/**
 * A round length of time, as the labels of an axis have it: without trailing zeros.
 *
 * @param {number} value milliseconds
 */
export function bare(value) {
  return span(value).replace(/\.0+(?= )|(?<=\.\d)0(?= )|(?<=min) 00 s|(?<=h) 00 min/, "");
}

/**
 * What is left of a wait, in steps that do not flicker.
 *
 * @param {number} value milliseconds
 */
export function countdown(value) {
  const seconds = Math.max(0, value) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

/**
 * How long ago something was.
 *
 * @param {number | null | undefined} at
 * @param {number} now
 */
export function ago(at, now) {
  if (at === null || at === undefined) return DASH;
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

/**
 * The time of day; the date too where it is not today.
 *
 * @param {number} at
 * @param {number} now
 */
export function moment(at, now) {
  const date = new Date(at);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date(now).toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/**
 * A whole number with groups of three; large ones rounded.
 *
 * @param {number | null | undefined} value
 */
export function count(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 100_000) return Math.round(value).toLocaleString("en-US");
  return value < 999_500 ? `${Math.round(value / 1000)}k` : `${(value / 1e6).toFixed(1)}M`;
}

/**
 * A share as a percentage.
 *
 * @param {number | null | undefined} value
 */
export function percent(value) {
  if (value === null || value === undefined) return DASH;
  const hundredths = value * 100;
  if (hundredths === 0 || hundredths >= 9.95) return `${Math.round(hundredths)} %`;
  return hundredths < 0.1 ? "<0.1 %" : `${hundredths.toFixed(1)} %`;
}

/**
 * A number per second, without its unit.
 *
 * @param {number | null | undefined} value
 */
export function rate(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 99.95) return count(value);
  return trim(value.toFixed(value >= 9.95 ? 1 : 2));
}

/**
 * A size in bytes, or characters.
 *
 * @param {number} value
 */
export function size(value) {
  if (value < 1000) return `${value}`;
  return value < 1e6 ? `${(value / 1e3).toFixed(1)} k` : `${(value / 1e6).toFixed(1)} M`;
}

/**
 * A word of the server as people write it, with spaces for underscores.
 *
 * @param {string} value
 */
export function words(value) {
  return visible(value).replaceAll("_", " ");
}

/**
 * A state as people write it.
 *
 * @param {string} state
 */
export function said(state) {
  return SAID[state] ?? words(state);
}

/**
 * The name of a refusal, which is that of an error in Python, as people write it: `CircuitOpen` is "circuit open".
 *
 * @param {string} kind
 */
export function refusal(kind) {
  return words(kind).replace(/(?<=[a-z])[A-Z]/g, " $&").toLowerCase();
}

/**
 * A number with its noun, in singular or plural.
 *
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/**
 * Any JSON value as readable text.
 *
 * @param {unknown} value
 */
export function readable(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "null");
}

/** @param {string} digits */
function trim(digits) {
  return digits.replace(/\.?0+$/, "");
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}
