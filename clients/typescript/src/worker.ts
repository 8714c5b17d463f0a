/**
 * A worker: it claims tasks, calls handlers, renews their leases, and ends each claim by what became of the call.
 *
 * Invariant: an attempt whose lease may have ended is aborted by the clock of this machine, also while the server
 * is not reached. What it would still write is refused, because another worker may hold the task.
 */

import {
  InvalidError,
  KeepstateError,
  LeaseLostError,
  OutcomeUnknownError,
  TooManyRequestsError,
  UnavailableError,
} from "./errors.js";
import type { Queue } from "./queue.js";
import { isLoss, type Task } from "./task.js";
import { sleep } from "./transport.js";

/** Works on a task. Its result becomes that of the task. */
export type Handler = (task: Task<any>) => unknown;

/** Options of a worker. */
export interface RunOptions {
  /** The largest number of tasks at once. Default: 10. */
  concurrency?: number;
  /** Seconds until the lease of a task ends unless it is renewed. Default: 60. */
  lease_s?: number;
  /** Seconds that an attempt may take. Default: any number. */
  timeout_s?: number;
  /** Seconds that handlers have to end after the worker was asked to stop. Default: 30. */
  drain_s?: number;
  /** The name of the worker, stored with each attempt. */
  worker?: string;
  /** Seconds without a task after which the worker ends. Default: never. */
  idle_s?: number;
  /** Asks the worker to stop, in addition to SIGTERM and SIGINT. */
  signal?: AbortSignal;
  /** Whether SIGTERM and SIGINT ask it to stop, where there are signals. Default: true. */
  handle_signals?: boolean;
  /** Seconds until a failed task is tried again, by its error; false makes it dead. Default: as the queue says, or 1, 2, 4 … */
  retry_in_s?: (error: unknown, task: Task) => number | false | undefined;
  /** Called with errors that end no task, such as a server that is away. Default: `console.error`. */
  onError?: (error: unknown, task?: Task) => void;
}

/** The report of a worker: how it ended, and the number of attempts by their end. */
export interface RunReport {
  ended: "stopped" | "idle";
  completed: number;
  failed: number;
  /** Attempts that ended because their task waits for a time, a message or a person. */
  waiting: number;
  released: number;
  /** Tasks that were cancelled or taken over while their handler ran. */
  lost: number;
}

/** A process, as far as a worker needs one; a browser has none. */
interface SignalSource {
  on(name: string, call: () => void): void;
  off(name: string, call: () => void): void;
}

const LONGEST_CLAIM_S = 5;
/** Seconds that an aborted handler has to end, before its task is returned without it. */
const ABORTING_S = 1;

export class Worker {
  private readonly report: RunReport = {
    ended: "stopped",
    completed: 0,
    failed: 0,
    waiting: 0,
    released: 0,
    lost: 0,
  };
  private readonly running = new Map<Task, Promise<void>>();
  private readonly stopping = new AbortController();
  private readonly stopped = new Promise<void>((resolve) => {
    this.stopping.signal.addEventListener("abort", () => resolve());
  });
  private readonly kinds: string[] | null;
  private readonly onError: (error: unknown, task?: Task) => void;

  constructor(
    private readonly queue: Queue,
    private readonly handlers: Handler | Record<string, Handler>,
    private readonly options: RunOptions,
  ) {
    this.kinds = typeof handlers === "function" ? null : Object.keys(handlers);
    if (this.kinds !== null && this.kinds.length === 0) {
      throw new InvalidError("`handlers` is empty; give a function of a task, or functions by kind");
    }
    for (const [name, least] of [
      ["concurrency", 1],
      ["lease_s", 0.1],
      ["drain_s", 0],
      ["idle_s", 0],
    ] as const) {
      const given = options[name];
      if (given !== undefined && !(given >= least))
        throw new InvalidError(`\`${name}\` is ${given}; give at least ${least}`);
    }
    this.onError =
      options.onError ??
      ((error, task) => console.error(task === undefined ? "" : `task ${task.id}:`, error));
  }

  async run(): Promise<RunReport> {
    const stop = (): void => this.stopping.abort();
    // After the first signal the next one ends the process, as it does without a worker.
    const source = (globalThis as { process?: SignalSource }).process;
    const signals =
      this.options.handle_signals === false || typeof source?.on !== "function" ? [] : ["SIGTERM", "SIGINT"];
    const ask = (): void => {
      stop();
      for (const name of signals) source?.off(name, ask);
    };
    for (const name of signals) source?.on(name, ask);
    if (this.options.signal?.aborted === true) stop();
    this.options.signal?.addEventListener("abort", stop);
    try {
      await this.work();
    } finally {
      await this.drain();
      for (const name of signals) source?.off(name, ask);
      this.options.signal?.removeEventListener("abort", stop);
    }
    return this.report;
  }

  private async work(): Promise<void> {
    const { concurrency = 10, lease_s = 60, idle_s = Infinity, worker } = this.options;
    let busyAt = performance.now();
    while (!this.isStopping) {
      const free = concurrency - this.running.size;
      if (free === 0) {
        await Promise.race([...this.running.values(), this.stopped]);
        continue;
      }
      const wasBusy = this.running.size > 0; // a task that ends during the claim may be due again after it
      let found: Task[];
      try {
        // Not ended by a stop: a task whose reply is thrown away would wait for the end of its lease.
        found = await this.queue.claim({
          lease_s,
          count: Math.min(free, 100),
          wait_s: Math.min(LONGEST_CLAIM_S, idle_s),
          kinds: this.kinds,
          ...(worker !== undefined && { worker }),
        });
      } catch (error) {
        if (!isTransient(error)) throw error;
        this.onError(error);
        await sleep(1, this.stopping.signal).catch(() => {}); // a stop ends the loop
        busyAt = performance.now();
        continue;
      }
      for (const task of found) {
        if (this.isStopping) await this.giveBack(task);
        else this.start(task);
      }
      if (found.length > 0 || wasBusy || this.running.size > 0) busyAt = performance.now();
      else if (performance.now() - busyAt >= idle_s * 1000) {
        this.report.ended = "idle";
        return;
      }
    }
  }

  private get isStopping(): boolean {
    return this.stopping.signal.aborted;
  }

  private start(task: Task): void {
    const running = this.attempt(task)
      .catch((error: unknown) => this.onError(error, task))
      .finally(() => this.running.delete(task));
    this.running.set(task, running);
  }

  /** Wait for handlers, and return the tasks of those that do not end in time. */
  private async drain(): Promise<void> {
    const drain_s = this.options.drain_s ?? 30;
    const ended = new AbortController();
    const all = Promise.all(this.running.values());
    await Promise.race([all, sleep(drain_s, ended.signal).catch(() => {})]);
    ended.abort();
    for (const task of this.running.keys()) task.abort(new Recall());
    await Promise.all(this.running.values());
  }

  private async attempt(task: Task): Promise<void> {
    const over = new AbortController();
    const beating = this.beat(task, over.signal);
    const { timeout_s } = this.options;
    const late =
      timeout_s === undefined
        ? undefined
        : setTimeout(() => task.abort(new Late(timeout_s)), timeout_s * 1000);
    try {
      await this.end(task, await this.outcome(task));
    } finally {
      clearTimeout(late);
      over.abort();
      await beating;
    }
  }

  /** Call the handler. If its signal is aborted, it has a second to end. */
  private async outcome(task: Task): Promise<Outcome> {
    const handler = typeof this.handlers === "function" ? this.handlers : this.handlers[task.kind];
    const call = async (): Promise<Outcome> => {
      try {
        return { value: await handler?.(task) };
      } catch (error) {
        return { error };
      }
    };
    const calling = call();
    const aborted = new Promise<Outcome>((resolve) => {
      task.signal.addEventListener("abort", () => {
        setTimeout(() => resolve({ error: task.signal.reason as unknown }), ABORTING_S * 1000);
      });
    });
    return await Promise.race([calling, aborted]);
  }

  private async end(task: Task, outcome: Outcome): Promise<void> {
    const reason: unknown = task.signal.aborted ? task.signal.reason : undefined;
    if (task.suspension !== null) {
      this.report.waiting += 1;
      if (!("error" in outcome) || outcome.error !== task.suspension) this.onError(new Swallowed(task), task);
      return;
    }
    if (task.ended !== null) {
      this.report[task.ended] += 1;
      return;
    }
    if (isLoss(reason)) {
      this.report.lost += 1;
      return;
    }
    try {
      if (!("error" in outcome)) await this.complete(task, outcome.value);
      else if (isLoss(outcome.error)) this.report.lost += 1;
      else if (reason instanceof Recall) await this.giveBack(task);
      else await this.fail(task, reason instanceof Late ? reason : outcome.error);
    } catch (error) {
      if (!isLoss(error)) throw error;
      this.report.lost += 1;
    }
  }

  private async complete(task: Task, value: unknown): Promise<void> {
    try {
      await task.complete(value);
      this.report.completed += 1;
    } catch (error) {
      if (!(error instanceof InvalidError)) throw error;
      const refused = new InvalidError(`the result of the handler cannot be stored: ${error.message}`);
      await task.fail(refused, { is_final: true });
      this.report.failed += 1;
    }
  }

  private async fail(task: Task, error: unknown): Promise<void> {
    const delay_s = this.options.retry_in_s?.(error, task);
    await task.fail(
      error,
      delay_s === false ? { is_final: true } : delay_s === undefined ? {} : { retry_in_s: delay_s },
    );
    this.report.failed += 1;
  }

  private async giveBack(task: Task): Promise<void> {
    await task.release();
    this.report.released += 1;
  }

  /** Renew the lease of a task until its attempt is over. */
  private async beat(task: Task, over: AbortSignal): Promise<void> {
    let expiry = setTimeout(() => task.abort(expired(task)), task.lease_s * 1000);
    try {
      for (;;) {
        await sleep(task.lease_s / 3, over);
        const sentAt = performance.now();
        try {
          await task.heartbeat(undefined, { signal: over });
        } catch (error) {
          over.throwIfAborted();
          if (isLoss(error)) {
            // A handler that has ended its task by itself may still have something to do.
            if (task.ended === null && task.suspension === null) task.abort(error);
            return;
          }
          if (!isTransient(error)) this.onError(error, task);
          continue; // the lease may last; its timer decides
        }
        clearTimeout(expiry);
        expiry = setTimeout(
          () => task.abort(expired(task)),
          task.lease_s * 1000 - (performance.now() - sentAt),
        );
      }
    } catch (error) {
      if (!over.aborted) throw error;
    } finally {
      clearTimeout(expiry);
    }
  }
}

type Outcome = { value: unknown } | { error: unknown };

/** A handler went on although its task waits. */
class Swallowed extends InvalidError {
  constructor(task: Task) {
    super(`the handler of task '${task.id}' caught Suspended and went on; throw it again`);
  }
}

/** The worker ends, and wants its task back. */
class Recall extends KeepstateError {
  constructor() {
    super("the worker was asked to stop", { code: "stopping" });
  }
}

/** The attempt took too long. */
class Late extends KeepstateError {
  constructor(timeout_s: number) {
    super(`the handler did not end in ${timeout_s} s`, { code: "timeout" });
  }
}

function expired(task: Task): LeaseLostError {
  return new LeaseLostError(`the lease of task '${task.id}' was not renewed in time; stop working on it`, {
    code: "lease_lost",
    facts: { name: task.id, token: task.token },
  });
}

function isTransient(error: unknown): boolean {
  return (
    error instanceof UnavailableError ||
    error instanceof OutcomeUnknownError ||
    error instanceof TooManyRequestsError
  );
}
