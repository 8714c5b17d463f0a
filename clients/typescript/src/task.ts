/** A claimed task: its payload, its lease and its ends. */

import { LeaseLostError } from "./errors.js";
import type { RequestOptions, Transport } from "./transport.js";
import type { Schemas } from "./types.js";

/** The way in which a handler has ended its task by itself. */
export type Ending = "completed" | "failed" | "released";

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
  private readonly lost = new AbortController();

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
    const body = { ...this.claim, lease_s: this.lease_s, ...(progress !== undefined && { progress }) };
    await this.post("/v1/task/heartbeat", body, options);
  }

  /** Complete the task with a result. Again under the same claim, nothing happens. */
  async complete(result?: unknown, options: RequestOptions = {}): Promise<void> {
    await this.end("completed", "/v1/task/complete", { ...this.claim, result: result ?? null }, options);
  }

  /** Fail the attempt. Without `retry_in_s`, the task waits 1, 2, 4 … seconds; `is_final` makes it dead at once. */
  async fail(
    error: unknown,
    options: RequestOptions & { retry_in_s?: number; is_final?: boolean } = {},
  ): Promise<void> {
    const { signal, ...rest } = options;
    await this.end(
      "failed",
      "/v1/task/fail",
      { ...this.claim, ...rest, error: textOfError(error) },
      { signal },
    );
  }

  /** Return the task to the queue as if it had not been claimed. */
  async release(options: RequestOptions = {}): Promise<void> {
    await this.end("released", "/v1/task/release", this.claim, options);
  }

  private get claim(): { id: string; token: number } {
    return { id: this.id, token: this.token };
  }

  private async end(
    ending: Ending,
    path: EndPath,
    body: never | object,
    options: RequestOptions,
  ): Promise<void> {
    this.ended = ending; // whatever becomes of the request, the worker gives the task no other end
    await this.post(path, body, options);
  }

  private async post(
    path: EndPath | "/v1/task/heartbeat",
    body: object,
    options: RequestOptions,
  ): Promise<void> {
    // A repeated request finds the claim gone if the first one has ended it, which is an error of neither.
    const input = { query: { space: this.space }, body: body as never };
    await this.transport.request("post", path, input, { ...options, safe: true });
  }
}

type EndPath = "/v1/task/complete" | "/v1/task/fail" | "/v1/task/release";

/** Return whether an error says that the claim is gone. */
export function isLoss(error: unknown): boolean {
  return error instanceof LeaseLostError;
}

/** Return an error as it is stored: its class, its message and where it was thrown. */
export function textOfError(error: unknown): string {
  const text = error instanceof Error ? (error.stack ?? `${error.name}: ${error.message}`) : String(error);
  return text.slice(0, 16_000);
}
