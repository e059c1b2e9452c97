// The server's HTTP interface. Every failure is an ApiError with the server's own message.

import { askForKey, authorization } from "./keys.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const MARK = "\0"; // no text of a form or of an address holds it
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const LONG = /^-?\d{16,}$/;

/** A whole number from its digits: a BigInt where a number would lose some. */
export const wholeOf = (digits) => (Number.isSafeInteger(Number(digits)) ? Number(digits) : BigInt(digits));

/** JSON whose whole numbers keep all their digits. */
export function parse(text) {
  let long = false;
  const marked = text.replace(TOKEN, (token) => {
    if (!LONG.test(token)) return token;
    long = true;
    return `"\\u0000${token}"`;
  });
  if (!long) return JSON.parse(text);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(MARK) ? wholeOf(value.slice(1)) : value));
}

/** The JSON of a value that may hold BigInts. */
export function stringify(value) {
  const marked = JSON.stringify(value, (_, part) => (typeof part === "bigint" ? MARK + part : part));
  return marked.replace(/"\\u0000(-?\d+)"/g, "$1");
}

async function call(method, path, { body, headers, signal } = {}) {
  const key = authorization();
  let response;
  try {
    response = await fetch(path, { method, body, headers: { ...headers, ...key }, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  }
  if (response.status === 401) {
    await askForKey(key);
    return call(method, path, { body, headers, signal });
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

/** Repeated by the browser or the network, a change with the same key is made once. */
const once = () => ({
  "Idempotency-Key": Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join(""),
});

export const text = (path) => call("GET", path);
export const get = async (path, signal) => parse(await call("GET", path, { signal }));
export const remove = async (path) => parse(await call("DELETE", path, { headers: once() }));
export const post = async (path, body, { signal, headers } = {}) =>
  parse(await call("POST", path, { body: stringify(body), headers: { ...JSON_BODY, ...headers }, signal }));
export const put = async (path, body) => parse(await call("PUT", path, { body: stringify(body), headers: JSON_BODY }));

/** Insert or replace one item. */
export const putItem = async (item) =>
  parse(await call("PUT", "/v1/items", { body: stringify(item), headers: { "Content-Type": "application/x-ndjson", ...once() } }));

/** Count that an item was taken after a history. */
export const interact = (history, item_id) => post("/v1/interactions", { interactions: [{ history, item_id }] }, { headers: once() });

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
