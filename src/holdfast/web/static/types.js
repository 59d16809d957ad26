// Types of what the server sends, as far as the page uses it; /openapi.json has all of it. Nothing here runs.

/**
 * @typedef {object} ToolEntry
 * @property {string} state
 * @property {number} failure_count
 * @property {number | null} failure_threshold
 * @property {number} times_opened
 * @property {number} calls
 * @property {number} failed
 * @property {number} timed_out
 * @property {string[] | null} shared
 * @property {string | null} alone
 */

/**
 * @typedef {object} ToolInProcess
 * @property {string} host
 * @property {number} pid
 * @property {string} process_name
 * @property {number} at_ms
 * @property {boolean} pending
 * @property {ToolEntry} tool
 */

/**
 * @typedef {object} ToolLine
 * @property {string} name
 * @property {string} state
 * @property {string | null} forced
 * @property {boolean} is_server
 * @property {boolean} refuses
 * @property {number} calls
 * @property {number} failed
 * @property {number} denied
 * @property {number} cached
 * @property {number | null} error_rate
 * @property {number | null} failure_rate
 * @property {number | null} p50_ms
 * @property {number | null} p95_ms
 * @property {number | null} p99_ms
 * @property {number | null} in_flight
 * @property {number | null} limit
 * @property {number} waiting
 * @property {number | null} rate
 * @property {number | null} full_rate
 * @property {number | null} remaining_ms
 * @property {string | null} last_error
 * @property {number | null} last_error_at_ms
 * @property {number} sharing
 * @property {number} alone
 * @property {string | null} why_alone
 * @property {ToolInProcess[]} processes
 * @property {number | null} calls_per_second
 */

/**
 * @typedef {object} Transition
 * @property {number} at_ms
 * @property {string} before
 * @property {string} after
 * @property {number} backoff_ms
 * @property {string} why
 */

/**
 * @typedef {object} RecentCall
 * @property {number} at_ms
 * @property {string} status
 * @property {number} duration_ms
 * @property {number} attempts
 * @property {string | null} category
 * @property {boolean} cached
 */

/**
 * @typedef {object} ToolDetail
 * @property {number} pid
 * @property {{key: string, value: unknown, origin: string}[]} policy
 * @property {Transition[]} transitions
 * @property {[number | null, number][]} histogram
 * @property {RecentCall[]} recent
 */

/**
 * @typedef {object} ServerEntry
 * @property {string} name
 * @property {string} target
 * @property {string} state
 * @property {number | null} pid
 * @property {number} restarts
 * @property {string | null} protocol
 * @property {Record<string, string> | null} server_info
 * @property {number | null} since_ms
 * @property {string | null} last_error
 * @property {string[]} stderr
 */

/**
 * @typedef {object} ServerLine
 * @property {string} process
 * @property {string} host
 * @property {number} proxy_pid
 * @property {string} proxy
 * @property {number} at_ms
 * @property {ServerEntry} server
 */

/**
 * @typedef {object} RunLine
 * @property {string} id
 * @property {string} session_id
 * @property {string} status
 * @property {string} prompt
 * @property {number} created_at_ms
 * @property {number} updated_at_ms
 * @property {number | null} started_at_ms
 * @property {number | null} finished_at_ms
 * @property {string | null} result_text
 * @property {string | null} error
 * @property {number} event_count
 * @property {number} tool_calls
 * @property {number} tool_failures
 * @property {number} tool_denials
 * @property {number} cached_hits
 * @property {Record<string, number>} spend
 * @property {{status: string} | null} verification
 * @property {string | null} forked_from
 * @property {string | null} owner
 * @property {boolean} interrupted
 * @property {{name: string, attempt: number, since_ms: number} | null} current
 */

/**
 * @typedef {object} RunEvent
 * @property {number} sequence
 * @property {number} timestamp_ms
 * @property {string} type
 * @property {Record<string, unknown>} payload
 * @property {boolean} [late]
 */

/**
 * @typedef {object} EventPage
 * @property {RunEvent[]} events
 * @property {number | null} first_available
 * @property {boolean} has_more
 * @property {boolean} gap
 */

/**
 * What one screen gives to the page around it.
 *
 * @typedef {object} Screen
 * @property {string} title
 * @property {HTMLElement} root
 * @property {(delta: number) => void} [move] to the next or previous row
 * @property {HTMLElement | null} [search] what `/` goes to
 * @property {() => void} [failed] what `f` does
 * @property {Record<string, () => void>} [actions] what other letters do
 * @property {() => boolean} [back] what Escape does here; false if there is nothing to do
 * @property {(route: import("./routes.js").Route) => boolean} [follow] shows another place of the same screen
 */

export {};
