/* The operations of the server, over fetch. Paths are relative: the page works wherever the server is mounted.

   `ask` sends one request. `follow` keeps a stream of events open, and resumes it from the last event that it
   saw. A browser opens six connections to a server, over all of its tabs: a stream closes while its tab is
   hidden, and a view opens one stream at most. */
import type { Operations, Problem } from "./operations.ts";

export type * from "./operations.ts";
export type OperationName = keyof Operations;
export type Answer<Name extends OperationName> = Operations[Name]["answer"];
export type StreamName = { [Name in OperationName]: Operations[Name]["event"] extends never ? never : Name }[OperationName];

/** An answer that is an error of the server, or the lack of an answer. */
export class RequestError extends Error {
  readonly code: string;
  readonly status: number;
  readonly retryable: boolean;
  readonly facts: Record<string, unknown>;

  constructor(problem: Pick<Problem, "code" | "status" | "detail"> & Partial<Problem>) {
    super(problem.detail);
    this.code = problem.code;
    this.status = problem.status;
    this.retryable = problem.retryable ?? false;
    this.facts = problem.facts ?? {};
  }

  /** True if the browser's session has ended: no request succeeds until it is let in again. */
  get isLockedOut(): boolean {
    return this.status === 401;
  }
}

type Options = { ifMatch?: string | null | undefined; onBehalfOf?: string | undefined; signal?: AbortSignal | undefined };
type Query<Name extends OperationName> = Operations[Name]["query"];
type Body<Name extends OperationName> = Operations[Name]["body"];

/** Send one request.
 *  @param ifMatch A version: the write fails with the code `precondition_failed` unless it is the current
 *  one. Null: it fails if the thing exists.
 *  @param onBehalfOf The person who acts; the author of the write is then the key and the person. */
export async function ask<Name extends OperationName>(
  name: Name,
  query: Query<Name>,
  ...rest: Body<Name> extends undefined ? [options?: Options] : [body: Body<Name>, options?: Options]
): Promise<Answer<Name>> {
  const [method, path] = split(name);
  const hasBody = method !== "GET" && method !== "DELETE" && !(name in BODILESS);
  const body = hasBody ? (rest[0] instanceof JsonText ? rest[0].text : JSON.stringify(rest[0])) : null;
  const options = ((hasBody ? rest[1] : rest[0]) ?? {}) as Options;
  const headers: Record<string, string> = {};
  if (hasBody) headers["content-type"] = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  if (options.ifMatch === null) headers["if-none-match"] = "*";
  else if (options.ifMatch !== undefined) headers["if-match"] = `"${options.ifMatch}"`;
  if (options.onBehalfOf) headers["on-behalf-of"] = encodeURIComponent(options.onBehalfOf);
  const response = await send(path + search(query), {
    method,
    headers,
    body,
    signal: options.signal ?? null,
  });
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Answer<Name>;
}

/** A body that is JSON already, and is sent as it is. */
export class JsonText {
  constructor(readonly text: string) {}
}

/** Read an answer as text, for literals that must stay as they are. */
export async function readText(name: OperationName & `GET ${string}`, query: Record<string, unknown>, signal?: AbortSignal): Promise<string> {
  const response = await send(split(name)[1] + search(query), { signal: signal ?? null });
  if (!response.ok) throw await errorOf(response);
  return response.text();
}

type Bodiless = { [Name in OperationName]: Body<Name> extends undefined ? Name & `POST ${string}` : never }[OperationName];
/** Operations that post without a body. The type names each of them. */
const BODILESS: Record<Bodiless, true> = {
  "POST /v1/conversation/stop": true,
  "POST /v1/schedule/pause": true,
  "POST /v1/schedule/resume": true,
  "POST /v1/schedule/run": true,
};

export type LiveState = "live" | "waiting";

/** Follow a stream until the signal aborts.
 *  @param onState Called when the stream is open, and when it waits for the server.
 *  @returns When the signal aborts.
 *  @throws RequestError An error that a new attempt does not mend, such as `compacted`: read the state again,
 *  then follow from there. */
export async function follow<Name extends StreamName>(
  name: Name,
  query: Query<Name>,
  onEvent: (data: Operations[Name]["event"], id: string | null) => void,
  signal: AbortSignal,
  onState: (state: LiveState) => void = () => undefined,
): Promise<void> {
  let lastId: string | null = null;
  let wait = 500;
  while (!signal.aborted) {
    await becomeVisible(signal);
    if (signal.aborted) return;
    const attempt = abortWhenHidden(signal);
    try {
      const headers: Record<string, string> = lastId === null ? {} : { "last-event-id": lastId };
      const response = await send(split(name)[1] + search(query), { headers, signal: attempt });
      if (!response.ok) throw await errorOf(response);
      onState("live");
      for await (const event of events(response.body!)) {
        if (event.name === "problem") throw new RequestError(JSON.parse(event.data) as Problem);
        lastId = event.id ?? lastId;
        wait = 500;
        onEvent(JSON.parse(event.data), event.id);
      }
    } catch (error) {
      if (!signal.aborted && !attempt.aborted && !mayRetry(error)) throw error;
    }
    if (signal.aborted) return;
    onState("waiting");
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, 10_000);
  }
}

function mayRetry(error: unknown): boolean {
  if (!(error instanceof RequestError)) return error instanceof TypeError; // the connection broke midway
  return error.retryable || error.status === 0 || error.status === 429 || error.status >= 502;
}

type ServerEvent = { name: string; id: string | null; data: string };

async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) {
        const event: ServerEvent = { name: "message", id: null, data: "" };
        for (const line of block.split("\n")) {
          const colon = line.indexOf(":");
          const field = line.slice(0, colon);
          const text = line.slice(colon + 1).replace(/^ /, "");
          if (field === "data") event.data += text;
          else if (field === "id") event.id = text;
          else if (field === "event") event.name = text;
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

async function send(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, { ...init, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    const detail = "The server does not answer. It may have stopped; the page tries again when you do.";
    throw new RequestError({ code: "no_answer", status: 0, detail, retryable: true });
  }
}

async function errorOf(response: Response): Promise<RequestError> {
  try {
    return new RequestError((await response.json()) as Problem);
  } catch {
    const detail = `The server answered ${response.status} without a reason.`;
    return new RequestError({ code: "no_reason", status: response.status, detail });
  }
}

function split(name: OperationName): [method: string, path: string] {
  const [method, path] = name.split(" /") as [string, string];
  return [method, path];
}

function search(query: Record<string, unknown>): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? "?" + new URLSearchParams(given.map(([name, value]) => [name, String(value)])) : "";
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

function becomeVisible(signal: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}

function abortWhenHidden(signal: AbortSignal): AbortSignal {
  const hiding = new AbortController();
  const look = () => document.hidden && hiding.abort();
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => hiding.abort(), { once: true });
  return hiding.signal;
}
