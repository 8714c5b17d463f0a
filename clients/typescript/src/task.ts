/** A claimed task: its payload, its lease, its steps and its ends. */

import { InvalidError, KeepstateError, LeaseLostError } from "./errors.js";
import { type RequestOptions, type Transport } from "./transport.js";
import type { Schemas } from "./types.js";

/** The way in which a handler has ended its task by itself. */
export type Ending = "completed" | "failed" | "released";

/** The answer to a question of a step. */
export interface StepAnswer {
  value: unknown;
  approved: boolean;
  /** The person; null for the default. */
  by: string | null;
  at: string;
  note: string;
  /** The thing that was decided about. Go on with this one. */
  subject: unknown;
}

/**
 * Ends an attempt whose task waits without a worker. Let it pass: what catches all errors throws it again.
 */
export class Suspended extends KeepstateError {
  constructor(task: string) {
    super(`task '${task}' waits; this attempt is over`, { code: "suspended" });
  }
}

/** A task that this process holds. Its id and token prove the claim. */
export class Task<P = unknown> {
  readonly id: string;
  /** The token of the claim. It grows with each claim of the task. */
  readonly token: number;
  /** The number of this attempt, starting at 1. */
  readonly attempt: number;
  readonly kind: string;
  readonly key: string | null;
  readonly payload: P;
  /** The end that the handler itself has given the task, if it has. */
  ended: Ending | null = null;
  /** The suspension that a step has thrown, if one has. */
  suspension: Suspended | null = null;
  private readonly lost = new AbortController();
  private readonly names = new Set<string>();

  constructor(
    private readonly transport: Transport,
    readonly space: string,
    claimed: Schemas["ClaimedTask"],
  ) {
    this.id = claimed.id;
    this.token = claimed.token;
    this.attempt = claimed.attempt;
    this.kind = claimed.kind;
    this.key = claimed.key;
    this.payload = claimed.payload as P;
    this.lease_s = claimed.lease_s;
  }

  /** Seconds until the lease ends after a renewal. */
  readonly lease_s: number;

  /** Aborted when the claim is lost, the attempt takes too long, or the worker has to end. Pass it on. */
  get signal(): AbortSignal {
    return this.lost.signal;
  }

  /** Abort the signal of the task. */
  abort(reason: unknown): void {
    this.lost.abort(reason);
  }

  /**
   * Renew the lease, and store how far the work is. `Queue.run` renews by itself.
   *
   * @throws LeaseLostError The task was cancelled, or taken over after the lease had ended.
   */
  async heartbeat(progress?: unknown, options: RequestOptions = {}): Promise<void> {
    const body = { lease_s: this.lease_s, ...(progress !== undefined && { progress }) };
    await this.post("/v1/task/heartbeat", body, options);
  }

  /** Complete the task with a result. Again under the same claim, nothing happens. */
  async complete(result?: unknown, options: RequestOptions = {}): Promise<void> {
    await this.end("completed", "/v1/task/complete", { result: result ?? null }, options);
  }

  /** Fail the attempt. Without `retry_in_s`, the task waits as its queue says, or 1, 2, 4 … seconds; `is_final` makes it dead at once. */
  async fail(
    error: unknown,
    options: RequestOptions & { retry_in_s?: number; is_final?: boolean } = {},
  ): Promise<void> {
    const { signal, ...rest } = options;
    await this.end("failed", "/v1/task/fail", { ...rest, error: textOfError(error) }, { signal });
  }

  /** Return the task to the queue as if it had not been claimed. */
  async release(options: RequestOptions = {}): Promise<void> {
    await this.end("released", "/v1/task/release", {}, options);
  }

  /** Return the task to the queue for some seconds, without using an attempt. */
  async later(seconds: number, options: RequestOptions = {}): Promise<void> {
    await this.end("released", "/v1/task/later", { seconds }, options);
  }

  // ---- steps

  /**
   * Call a function, and record its result. If an earlier attempt has recorded it, return that instead.
   *
   * The function runs at least once: a kill before the record lets the next attempt run it again. With `once`,
   * it runs at most once, and an open end is a `StepUnknownError` until `Queue.settle`. Errors are not recorded.
   *
   * @param name The name of the step in its task. Each name is used once in an attempt.
   * @returns The recorded result.
   * @throws LeaseLostError The claim no longer holds the task. Nothing was recorded.
   */
  async step<T>(
    name: string,
    fn: () => T | Promise<T>,
    options: RequestOptions & { once?: boolean } = {},
  ): Promise<T> {
    const { signal, once = false } = options;
    const begun = await this.stepAt("/v1/task/step/begin", name, { once }, { signal });
    if (begun.state === "done") return begun.result as T;
    const result = await fn();
    const recorded = await this.post("/v1/task/step/record", { name, result: result ?? null }, { signal });
    return recorded.result as T;
  }

  /**
   * Apply operations to the space together with the record of the step: exactly once.
   *
   * @throws LeaseLostError The claim no longer holds the task. Nothing was applied.
   */
  async transact(
    name: string,
    operations: Schemas["Batch"]["operations"],
    options: RequestOptions & { message?: string } = {},
  ): Promise<Schemas["Applied"]["results"]> {
    this.use(name);
    const { signal, message = "" } = options;
    const input = {
      query: { space: this.space },
      body: { operations, message, step: { ...this.claim, name } },
    };
    return (await this.transport.request("post", "/v1/batch", input, { signal, safe: true })).results;
  }

  /** Put another task, once, and return its id: that of this task, `/` and the name, unless one is given. */
  async spawn(
    name: string,
    payload: unknown,
    options: Omit<Schemas["NewTask"], "payload"> & RequestOptions = {},
  ): Promise<string> {
    const { signal, ...put } = options;
    return (await this.stepAt("/v1/task/step/spawn", name, { task: { ...put, payload } }, { signal }))
      .result as string;
  }

  /** Wait for a time, which counts from the first attempt that comes here. Above 5 seconds, no worker is held. */
  async sleep(name: string, time: number | Date, options: RequestOptions = {}): Promise<void> {
    const given = time instanceof Date ? { until: time.toISOString() } : { seconds: time };
    await this.stepAt("/v1/task/step/sleep", name, given, options);
  }

  /**
   * Return the first message that `Queue.send` sent to this task by this name, or wait for it without a worker.
   *
   * @returns The message; undefined if none came within `timeout_s` from the first attempt on.
   */
  async receive<T = unknown>(
    name: string,
    options: RequestOptions & { timeout_s?: number } = {},
  ): Promise<T | undefined> {
    const { signal, ...rest } = options;
    const found = await this.stepAt("/v1/task/step/receive", name, rest, { signal });
    return found.state === "timeout" ? undefined : (found.result as T);
  }

  /** Return the results of other tasks in the order of their ids, or wait for them without a worker. */
  async results<T = unknown>(ids: string[], options: RequestOptions = {}): Promise<T[]> {
    return (await this.waited("/v1/task/step/await", { ids }, options)).result as T[];
  }

  /** Ask people, once, and return the answer, or wait for it without a worker. */
  async ask(
    name: string,
    question: string,
    options: Omit<Schemas["Question"], "question" | "id" | "task"> &
      RequestOptions & { default?: unknown } = {},
  ): Promise<StepAnswer> {
    const { signal, default: fallback, ...rest } = options;
    const body = { question: { ...rest, question }, ...(fallback !== undefined && { default: fallback }) };
    return (await this.stepAt("/v1/task/step/ask", name, body, { signal })).result as StepAnswer;
  }

  private use(name: string): void {
    if (this.names.has(name)) {
      throw new InvalidError(
        `step '${name}' of task '${this.id}' was used before in this attempt; give each a name of its own`,
      );
    }
    this.names.add(name);
  }

  private async stepAt(
    path: StepPath,
    name: string,
    body: object,
    options: RequestOptions,
  ): Promise<Schemas["StepOutcome"]> {
    this.use(name);
    return await this.waited(path, { ...body, name }, options);
  }

  private async waited(
    path: StepPath,
    body: object,
    options: RequestOptions,
  ): Promise<Schemas["StepOutcome"]> {
    if (this.suspension !== null) throw this.suspension;
    const found = await this.post(path, body, options);
    if (found.state !== "waiting") return found;
    throw (this.suspension ??= new Suspended(this.id));
  }

  private get claim(): { id: string; token: number } {
    return { id: this.id, token: this.token };
  }

  private async end(ending: Ending, path: EndPath, body: object, options: RequestOptions): Promise<void> {
    await this.post(path, body, options);
    this.ended = ending;
  }

  private async post(
    path: EndPath | StepPath,
    body: object,
    options: RequestOptions,
  ): Promise<Schemas["StepOutcome"]> {
    // Each of these may be repeated: under one claim, a step is recorded once and a task ends once.
    const input = { query: { space: this.space }, body: { ...this.claim, ...body } as never };
    const sending = { ...options, safe: true };
    return await this.transport.request("post", path as "/v1/task/step/begin", input, sending);
  }
}

type EndPath = `/v1/task/${"complete" | "fail" | "release" | "later" | "heartbeat"}`;
type StepPath = `/v1/task/step/${"begin" | "record" | "spawn" | "sleep" | "receive" | "await" | "ask"}`;

/** Return whether an error says that the claim is gone. */
export function isLoss(error: unknown): boolean {
  return error instanceof LeaseLostError;
}

/** Return an error as it is stored: its class, its message and where it was thrown. */
export function textOfError(error: unknown): string {
  const text = error instanceof Error ? (error.stack ?? `${error.name}: ${error.message}`) : String(error);
  return text.slice(0, 16_000);
}
