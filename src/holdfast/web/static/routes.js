// Places of the page as links: #/tools, #/tools/NAME, #/runs?status=failed, #/runs/ID, #/runs/ID/SEQUENCE, #/servers.

import { LONE } from "./format.js";

/**
 * @typedef {object} Route
 * @property {"tools" | "tool" | "runs" | "run" | "servers"} screen
 * @property {string} name of a tool, or a run's id
 * @property {number | null} sequence of an event
 * @property {URLSearchParams} query
 */

/**
 * The place that a link leads to; an unknown link leads to the tools.
 *
 * @param {string} hash
 * @returns {Route}
 */
export function parse(hash) {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const query = new URLSearchParams(search);
  const [first, second, third] = path.split("/").map(decoded);
  const name = second ?? "";
  const sequence = third !== undefined && /^\d+$/.test(third) ? Number(third) : null;
  if (first === "runs") return { screen: name ? "run" : "runs", name, sequence, query };
  if (first === "servers") return { screen: "servers", name, sequence, query };
  return { screen: first === "tools" && name ? "tool" : "tools", name, sequence, query };
}

/** @param {string} name */
export function toTool(name) {
  return `#/tools/${encoded(name)}`;
}

/**
 * @param {string} id
 * @param {number | null} [sequence]
 */
export function toRun(id, sequence = null) {
  return `#/runs/${encoded(id)}${sequence === null ? "" : `/${sequence}`}`;
}

/**
 * A name percent-encoded for a path; a lone surrogate, which cannot be encoded, becomes U+FFFD.
 *
 * @param {string} name
 */
export function encoded(name) {
  return encodeURIComponent(name.replace(LONE, "\ufffd")).replace(/^\.{1,2}$/, (dots) => dots.replaceAll(".", "%2E"));
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not percent-encoded: typed by hand
  }
}
