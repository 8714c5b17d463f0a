/**
 * Streams of server-sent events that come back by themselves.
 *
 * A stream that ends, breaks or falls silent is opened again behind the last event that was seen, at this server
 * or another one, so a reader misses nothing and gets nothing twice. An error that a repetition does not mend
 * ends the iteration.
 */

import { errorOf, KeepstateError, TooManyRequestsError, UnavailableError } from "./errors.js";
import { delayOf, type RequestOptions, type Transport } from "./transport.js";
import type { Path } from "./types.js";
import { read } from "./values.js";

/** Options of a stream. */
export interface StreamOptions extends RequestOptions {
  /** The position after which to continue, such as that of the last event that was handled. */
  after?: string | undefined;
}

/** An event as it was sent. */
export interface SentEvent {
  data: string;
  id: string | null;
  name: string | null;
}

/** Seconds without a sign of life; a server sends one every 15. */
const SILENCE_S = 45;

/** Yield the data of events, for ever; the `position` is that of the last one that was yielded. */
export async function* follow<T>(
  transport: Transport,
  path: Path,
  query: object,
  options: StreamOptions,
): AsyncGenerator<{ data: T; position: string | null }, void, undefined> {
  let position: string | null = options.after ?? null;
  let retry_s = 1; // the server's own pause, which differs from client to client
  for (let attempt = 0; ; attempt += 1) {
    const ending = new AbortController();
    const signal =
      options.signal === undefined ? ending.signal : AbortSignal.any([options.signal, ending.signal]);
    let error: KeepstateError;
    let first_s: number | undefined;
    try {
      const response = await transport.open(path, query, position, signal);
      for await (const event of events(response, ending, (ms) => (retry_s = ms / 1000))) {
        attempt = 0;
        if (event.name === "problem") {
          throw errorOf(read(event.data), 0);
        }
        position = event.id ?? position;
        if (event.name !== "ready") yield { data: read(event.data) as T, position };
      }
      error = new UnavailableError("the stream ended", { code: "unavailable", retryable: true });
      first_s = retry_s;
    } catch (cause) {
      options.signal?.throwIfAborted();
      if (!(cause instanceof UnavailableError || cause instanceof TooManyRequestsError)) throw cause;
      error = cause;
    } finally {
      ending.abort();
    }
    await transport.pause(error, delayOf(attempt, first_s), options.signal);
  }
}

/** Yield the events of a response. Silence ends it. */
export async function* events(
  response: Response,
  ending: AbortController,
  onRetry: (ms: number) => void = () => {},
): AsyncGenerator<SentEvent, void, undefined> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event: SentEvent = { data: "", id: null, name: null };
  let hasData = false;
  const silent = (): void => ending.abort(new Error(`nothing came for ${SILENCE_S} s`));
  let timer = setTimeout(silent, SILENCE_S * 1000);
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(broken);
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE_S * 1000);
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (hasData) yield event;
          event = { data: "", id: null, name: null };
          hasData = false;
          continue;
        }
        const [, field, text = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
        if (field === "data") {
          event.data += hasData ? `\n${text}` : text;
          hasData = true;
        } else if (field === "id") event.id = text;
        else if (field === "event") event.name = text;
        else if (field === "retry" && /^\d+$/.test(text)) onRetry(Number(text));
      }
    }
  } finally {
    clearTimeout(timer);
    await reader.cancel().catch(() => {}); // the connection may be broken already
  }
}

function broken(cause: unknown): never {
  const problem = { code: "unavailable", retryable: true };
  throw new UnavailableError(`the stream broke: ${String(cause)}`, problem, { cause });
}
