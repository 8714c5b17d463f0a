/**
 * Requests: conditions, problems as errors, and retries with jitter.
 *
 * Invariant: a request is repeated only if that cannot apply it twice. A request that is not `safe` is repeated
 * only if the server has certainly not applied it; if no reply came, it fails with `OutcomeUnknownError`.
 */

import {
  errorOf,
  KeepstateError,
  OutcomeUnknownError,
  TooManyRequestsError,
  UnavailableError,
} from "./errors.js";
import type { Answer, Input, Method, Path } from "./types.js";
import { read, write } from "./values.js";

/** Options of a client. */
export interface KeepstateOptions {
  /** The secret of a key. Without one, a browser shows the cookie of its session. */
  key?: string;
  /** The person for whom the client writes, as the author `<key>/<person>`. */
  on_behalf_of?: string;
  /** Seconds for which a request is repeated while the server is not reached. Default: 30. */
  retry_s?: number;
  /** Seconds that a request may take. Default: 45; the server ends each within 30. */
  timeout_s?: number;
  /** Called before a request is repeated, and before a stream is opened again. */
  onRetry?: (error: KeepstateError, delay_s: number) => void;
  /** The function to send with. Default: `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** Options of one request. */
export interface RequestOptions {
  /** Ends the request. */
  signal?: AbortSignal | undefined;
}

/** What a request needs beyond its query and body. */
export interface Sending extends RequestOptions {
  headers?: Record<string, string>;
  /** Whether it may be sent again although it may have been applied. Default: whether it reads. */
  safe?: boolean;
  /** The body as JSON, where it is not just `write(body)`. */
  text?: string;
  media?: string;
}

/** An answer with the `ETag` of its target, without quotes. */
export interface Reply<A> {
  content: A;
  version: string | null;
}

const FIRST_DELAY_S = 0.1;
const LONGEST_DELAY_S = 5;
/** Causes with which `fetch` of Node fails before it sends anything. */
const NOT_SENT = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

export class Transport {
  private readonly base: URL;
  private readonly fetch: typeof globalThis.fetch;
  private readonly headers: Record<string, string>;

  constructor(
    url: string | URL,
    private readonly options: KeepstateOptions,
  ) {
    this.base = new URL(url);
    if (!this.base.pathname.endsWith("/")) this.base.pathname += "/";
    this.fetch = options.fetch ?? ((...given) => globalThis.fetch(...given));
    this.headers = {
      ...(options.key !== undefined && { authorization: `Bearer ${options.key}` }),
      ...(options.on_behalf_of !== undefined && { "on-behalf-of": encodeURIComponent(options.on_behalf_of) }),
    };
  }

  /** Send a request, and return its answer. */
  async request<P extends Path, M extends Method<P>>(
    method: M,
    path: P,
    input: Input<P, M>,
    sending: Sending = {},
  ): Promise<Answer<P, M>> {
    return (await this.send(method, path, input, sending)).content;
  }

  /** Send a request, and return its answer with its version. */
  async send<P extends Path, M extends Method<P>>(
    method: M,
    path: P,
    input: Input<P, M>,
    sending: Sending = {},
  ): Promise<Reply<Answer<P, M>>> {
    const { query, body: content } = input as { query?: object; body?: unknown };
    const body = sending.text ?? (content === undefined ? undefined : write(content));
    const address = this.address(path, query ?? {});
    const isSafe = sending.safe ?? method === "get";
    const headers = { ...this.headers, ...sending.headers };
    if (body !== undefined) headers["content-type"] = sending.media ?? "application/json";
    const until = performance.now() + (this.options.retry_s ?? 30) * 1000;
    for (let attempt = 0; ; attempt += 1) {
      try {
        const { text, version } = await this.attempt(address, method, headers, body, isSafe, sending.signal);
        return { content: read(text) as Answer<P, M>, version };
      } catch (error) {
        if (!(error instanceof KeepstateError) || !mayRepeat(error, isSafe)) throw error;
        const delay_s = Math.max(delayOf(attempt), Number(error.facts["retry_after_s"] ?? 0));
        if (performance.now() + delay_s * 1000 > until) throw error;
        await this.pause(error, delay_s, sending.signal);
      }
    }
  }

  /** Open a stream of server-sent events. */
  async open(path: Path, query: object, lastId: string | null, signal: AbortSignal): Promise<Response> {
    const headers = {
      ...this.headers,
      accept: "text/event-stream",
      ...(lastId !== null && { "last-event-id": lastId }),
    };
    return await this.fetched(
      this.address(path, query),
      { headers, signal, cache: "no-store" },
      true,
      signal,
    );
  }

  /** Report an error, and wait. */
  async pause(error: KeepstateError, delay_s: number, signal: AbortSignal | undefined): Promise<void> {
    this.options.onRetry?.(error, delay_s);
    await sleep(delay_s, signal);
  }

  private async attempt(
    address: string,
    method: string,
    headers: Record<string, string>,
    body: string | undefined,
    isSafe: boolean,
    signal: AbortSignal | undefined,
  ): Promise<{ text: string; version: string | null }> {
    const late = AbortSignal.timeout((this.options.timeout_s ?? 45) * 1000);
    const signals = signal === undefined ? late : AbortSignal.any([signal, late]);
    const init = {
      method: method.toUpperCase(),
      headers,
      signal: signals,
      ...(body !== undefined && { body }),
    };
    const response = await this.fetched(address, init, isSafe, signal);
    try {
      return { text: await response.text(), version: versionOf(response) };
    } catch (cause) {
      throw lost(cause, isSafe, signal);
    }
  }

  private async fetched(
    address: string,
    init: RequestInit,
    isSafe: boolean,
    signal: AbortSignal | undefined,
  ): Promise<Response> {
    signal?.throwIfAborted();
    let response: Response;
    try {
      response = await this.fetch(address, { credentials: "same-origin", redirect: "error", ...init });
    } catch (cause) {
      throw lost(cause, isSafe, signal);
    }
    if (response.ok) return response;
    let content: unknown;
    try {
      const text = await response.text();
      content = response.headers.get("content-type")?.includes("json") ? read(text) : undefined;
    } catch {
      content = undefined; // the status says enough
    }
    const error = errorOf(content, response.status);
    const after_s = Number(response.headers.get("retry-after"));
    if (after_s > 0) error.facts["retry_after_s"] = after_s;
    throw error;
  }

  private address(path: string, query: object): string {
    const url = new URL(path.slice(1), this.base);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) url.searchParams.set(name, textOfParameter(value));
    }
    return url.href;
  }
}

/** Return a random token for an `Idempotency-Key`. */
export function newToken(): string {
  // `crypto.randomUUID` is missing on pages that are not served over TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

/** Return the headers that make the server apply a request once, however often it is sent. */
export function once(): Sending {
  return { headers: { "idempotency-key": newToken() }, safe: true };
}

/** Return the pause before a repetition: it doubles, and half of it is random. */
export function delayOf(attempt: number, first_s = FIRST_DELAY_S): number {
  return Math.min(LONGEST_DELAY_S, first_s * 2 ** Math.min(attempt, 20)) * (0.5 + Math.random() / 2);
}

/** Wait, and throw the reason of the signal if it is aborted meanwhile. */
export async function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    signal?.addEventListener("abort", end);
  });
  signal?.throwIfAborted();
}

function mayRepeat(error: KeepstateError, isSafe: boolean): boolean {
  if (error instanceof TooManyRequestsError) return true;
  if (error instanceof UnavailableError) return isSafe || !error.code.startsWith("http_5");
  return isSafe && error instanceof OutcomeUnknownError;
}

function lost(cause: unknown, isSafe: boolean, signal: AbortSignal | undefined): unknown {
  if (signal?.aborted) return signal.reason;
  const reason = (cause as { cause?: { code?: string; message?: string } }).cause;
  if (isSafe || NOT_SENT.has(reason?.code ?? "")) {
    const problem = { code: "unavailable", retryable: true };
    return new UnavailableError(`the server was not reached: ${reason?.message ?? String(cause)}`, problem, {
      cause,
    });
  }
  const detail = "no reply came: the request may or may not have been applied. Read, and decide";
  return new OutcomeUnknownError(detail, { code: "outcome_unknown" }, { cause });
}

function versionOf(response: Response): string | null {
  return response.headers.get("etag")?.replace(/^(?:W\/)?"(.*)"$/, "$1") ?? null;
}

function textOfParameter(value: unknown): string {
  if (value instanceof Date) return value.toISOString();
  return typeof value === "string" ? value : write(value);
}
