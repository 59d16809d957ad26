// Requests of the page to its own server. What goes wrong comes back as an error that can be shown.

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Whether the same request may be answered later: there was no answer, or the server has trouble of its own.
 *
 * @param {unknown} problem
 */
export function isPassing(problem) {
  return !(problem instanceof ApiError) || problem.status >= 500;
}

/**
 * The answer of the server to a GET request.
 *
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, signal) {
  return answered(await fetch(path, { headers: { Accept: "application/json" }, ...(signal && { signal }) }));
}

/**
 * The answer of the server to a POST request.
 *
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function post(path, body = {}) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return answered(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

/**
 * A query string of what is given; empty values are left out.
 *
 * @param {Record<string, string | number | null | undefined>} values
 */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/**
 * What is wrong, in the words of the server.
 *
 * @param {Response} answer
 */
export async function complaint(answer) {
  try {
    const { error } = await answer.json();
    return [error.message, error.hint].filter(Boolean).join(". ").replaceAll("..", ".");
  } catch {
    return `the server answered ${answer.status}`; // not an error in the form of this API
  }
}

/** @param {Response} answer */
async function answered(answer) {
  if (answer.ok) return answer.json();
  throw new ApiError(answer.status, await complaint(answer));
}
