// The server's HTTP interface. Every failure is an ApiError with the server's own message.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(method, path, body, headers, signal) {
  let response;
  try {
    response = await fetch(path, { method, body, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  }
  const text = await response.text();
  if (response.ok) return text;
  let message = text;
  try {
    const { error } = JSON.parse(text);
    message = [error.message, ...Object.entries(error.lines ?? {}).map(([line, why]) => `line ${line}: ${why}`)].join("; ");
  } catch {
    // not JSON: the text is the message
  }
  throw new ApiError(message || `the server answered ${response.status}`, response.status);
}

const JSON_BODY = { "Content-Type": "application/json" };

export const text = (path) => call("GET", path);
export const get = async (path, signal) => JSON.parse(await call("GET", path, undefined, undefined, signal));
export const post = async (path, body, signal) => JSON.parse(await call("POST", path, JSON.stringify(body), JSON_BODY, signal));
export const put = async (path, body) => JSON.parse(await call("PUT", path, JSON.stringify(body), JSON_BODY));
export const remove = async (path) => JSON.parse(await call("DELETE", path, undefined, key()));

/** Insert or replace one item. */
export const putItem = async (item) =>
  JSON.parse(await call("PUT", "/v1/items", JSON.stringify(item), { "Content-Type": "application/x-ndjson", ...key() }));

function key() {
  return { "Idempotency-Key": Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("") };
}

/** Items by title or id, which the rules and the filter allow or not. */
export function items({ query, ids = [], limit, rules = [], filter = "" }, signal) {
  const values = new URLSearchParams();
  if (query !== undefined) values.set("query", query);
  if (limit !== undefined) values.set("limit", limit);
  for (const id of ids) values.append("id", id);
  for (const rule of rules) values.append("rule", rule);
  if (filter.trim()) values.set("filter", filter);
  return get(`/v1/items?${values}`, signal);
}
