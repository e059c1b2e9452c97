/** A failure: what the server answered, or that it did not answer. */
export class LeafbeamError extends Error {
  /** status: 0 without an answer. code: the class of the server's error. lines: what is wrong with each line of a batch. */
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly requestId: string,
    readonly lines: Record<string, string> = {},
  ) {
    super(message);
    this.name = "LeafbeamError";
  }
}

export interface Options {
  /** What `leafbeam keys add` printed. */
  key?: string;
  /** Milliseconds of one call with its retries. */
  deadlineMs?: number;
  /** At most, of one call. */
  attempts?: number;
}

interface Sent {
  body?: unknown;
  query?: object;
  key?: string;
}

/** A value as one part of a path. */
function part(value: string | number): string {
  if (["", ".", ".."].includes(String(value))) throw new RangeError(`${JSON.stringify(value)} cannot be a part of a URL`);
  return encodeURIComponent(value);
}

/** A client of `leafbeam serve`. Ids beyond 2^53 lose digits in JavaScript: use ids of text. */
export class LeafbeamClient {
  private readonly url: string;

  constructor(url: string, private readonly options: Options = {}) {
    this.url = url.replace(/\/+$/, "");
  }

  // METHODS

  /** Send a call; again after 429 and 503, and where it only reads or has a key and its answer was lost. */
  private async send<T>(method: string, path: string, { body, query = {}, key }: Sent): Promise<T> {
    const { deadlineMs = 30_000, attempts = 5 } = this.options;
    const until = performance.now() + deadlineMs;
    const headers: Record<string, string> = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (key !== undefined) headers["idempotency-key"] = key;
    if (this.options.key !== undefined) headers["authorization"] = `Bearer ${this.options.key}`;
    const values = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
    const url = `${this.url}${path}${values.length ? `?${new URLSearchParams(values)}` : ""}`;
    const isRepeatable = method === "GET" || key !== undefined || path === "/v1/recommend";
    for (let attempt = 1;; attempt++) {
      let failure: LeafbeamError;
      let pauseMs = Math.random() * Math.min(100 * 2 ** (attempt - 1), 10_000);
      let isWorthIt = isRepeatable;
      try {
        const signal = AbortSignal.timeout(Math.max(1, until - performance.now()));
        const init: RequestInit = { method, headers, signal, redirect: "manual" };
        const answer = await fetch(url, body === undefined ? init : { ...init, body: JSON.stringify(body) });
        const isJson = answer.headers.get("content-type")?.startsWith("application/json") ?? false;
        const content = isJson ? await answer.json() : await answer.text();
        if (answer.ok || path === "/readyz") return content as T;
        const error = (content as { error?: Partial<ErrorDetail> }).error ?? {};
        const says = error.message ?? "this is no answer of leafbeam";
        const id = answer.headers.get("x-request-id") ?? "";
        failure = new LeafbeamError(
          `${method} ${path}: the server answered ${answer.status}: ${says}`,
          answer.status,
          error.type ?? `http_${answer.status}`,
          id,
          error.lines ?? {},
        );
        isWorthIt = answer.status === 429 || answer.status === 503;
        pauseMs += error.retry_after_ms ?? 0;
      } catch (error) {
        failure = new LeafbeamError(`${method} ${path}: no whole answer (${error})`, 0, "no_answer", "");
      }
      if (!isWorthIt || attempt >= attempts || performance.now() + pauseMs >= until) throw failure;
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }
}
