/** The queue of a space: tasks are put, claimed by workers, and end once. */

import { allOf, type Page } from "./pages.js";
import { newToken, once, type RequestOptions, type Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";
import { Task } from "./task.js";
import { Worker, type Handler, type RunOptions, type RunReport } from "./worker.js";

/** A task as listings show it. */
export type TaskInfo = Schemas["Task"];
/** Options of `put`; docs/how-to/workers.md explains them. */
export type PutOptions = Omit<Schemas["NewTask"], "payload"> & RequestOptions;
/** Options of `claim`. */
export type ClaimOptions = Schemas["ClaimRequest"] & RequestOptions;

export class Queue {
  constructor(
    private readonly transport: Transport,
    readonly space: string,
  ) {}

  /** Put a task, once however often the request is sent. A task with its `id` is kept by default. */
  async put(payload: unknown, options: PutOptions = {}): Promise<Schemas["PutTask"]> {
    const { signal, ...rest } = options;
    const input = { ...this.at(), body: { ...rest, payload } };
    return await this.transport.request("post", "/v1/tasks", input, { signal, ...once() });
  }

  /**
   * Claim tasks, and wait up to `wait_s` seconds for one. `run` does this for you.
   *
   * If no reply comes, the request is sent again; a task that the lost reply had claimed is free when its lease
   * ends.
   */
  async claim<P = unknown>(options: ClaimOptions): Promise<Task<P>[]> {
    const { signal, ...body } = options;
    const answer = await this.transport.request(
      "post",
      "/v1/tasks/claim",
      { ...this.at(), body },
      { signal, safe: true },
    );
    return answer.items.map((claimed) => new Task<P>(this.transport, this.space, claimed));
  }

  /**
   * Work on tasks until a signal asks to stop: SIGTERM, SIGINT, or `signal`.
   *
   * A handler that returns completes its task with the result, one that throws fails it. Leases are renewed
   * meanwhile. On stop, the worker claims nothing more, waits `drain_s` seconds for its handlers, and returns
   * the tasks of those that did not end to the queue.
   *
   * @param handlers A function of a task, or functions by the kind of a task.
   */
  async run(handlers: Handler | Record<string, Handler>, options: RunOptions = {}): Promise<RunReport> {
    return await new Worker(this, handlers, options).run();
  }

  /** Return a task with its payload. */
  async get(id: string, options: RequestOptions = {}): Promise<TaskInfo> {
    return await this.transport.request("get", "/v1/task", this.at({ id }), options);
  }

  /** Yield tasks: those of a state by time, or all by id. */
  list(options: Query<"/v1/tasks", "get"> & RequestOptions = {}): AsyncGenerator<TaskInfo, void, undefined> {
    const cursor = options.reverse === true ? "before" : "after";
    return allOf((after) => this.page({ ...options, ...(after !== undefined && { [cursor]: after }) }));
  }

  /** Return one page of tasks. */
  async page(options: Query<"/v1/tasks", "get"> & RequestOptions = {}): Promise<Page<TaskInfo>> {
    const { signal, ...query } = options;
    return await this.transport.request("get", "/v1/tasks", this.at(query), { signal });
  }

  /** Return the number of tasks in each state. */
  async counts(options: RequestOptions = {}): Promise<Schemas["TaskTotals"]["counts"]> {
    return (await this.transport.request("get", "/v1/tasks/counts", this.at(), options)).counts;
  }

  /**
   * Return the result of a task, and wait up to `wait_s` seconds (20 at most) for its end.
   *
   * @throws NotFoundError It has no result yet, or does not exist.
   * @throws TaskFailedError It is dead.
   * @throws TaskCancelledError It was cancelled.
   */
  async result<T = unknown>(id: string, options: RequestOptions & { wait_s?: number } = {}): Promise<T> {
    const { signal, ...query } = options;
    return (await this.transport.request("get", "/v1/task/result", this.at({ id, ...query }), { signal }))
      .result as T;
  }

  /** Return the last attempts at a task. */
  async attempts(id: string, options: RequestOptions = {}): Promise<Schemas["TaskAttempt"][]> {
    return (await this.transport.request("get", "/v1/task/attempts", this.at({ id }), options)).items;
  }

  /** Cancel a task that has not ended, and return whether there was one. */
  async cancel(id: string, options: RequestOptions & { reason?: string } = {}): Promise<boolean> {
    const { signal, ...rest } = options;
    return (
      await this.transport.request(
        "post",
        "/v1/task/cancel",
        { ...this.at(), body: { id, ...rest } },
        { signal },
      )
    ).existed;
  }

  /** Make dead tasks ready again, and return their number. */
  async requeue(ids: string[], options: RequestOptions = {}): Promise<number> {
    return (
      await this.transport.request("post", "/v1/tasks/requeue", { ...this.at(), body: { ids } }, options)
    ).count;
  }

  /** Send a message to a task that waits for one of this name, once. Return whether the task exists. */
  async send(
    id: string,
    name: string,
    value: unknown,
    options: RequestOptions & { send_id?: string } = {},
  ): Promise<boolean> {
    const { signal, send_id = newToken() } = options;
    const input = { ...this.at(), body: { id, name, value, send_id } };
    return (await this.transport.request("post", "/v1/task/send", input, { signal, safe: true })).existed;
  }

  /** Return the steps that a task has begun or done. */
  async steps(id: string, options: RequestOptions = {}): Promise<Schemas["StepRow"][]> {
    return (await this.transport.request("get", "/v1/task/steps", this.at({ id }), options)).items;
  }

  /** Tell the result of a step with `once` whose end is unknown; without a result, it was not done and runs again. */
  async settle(id: string, name: string, options: RequestOptions & { result?: unknown } = {}): Promise<void> {
    const { signal, ...rest } = options;
    const input = { ...this.at(), body: { ...rest, id, name } };
    await this.transport.request("post", "/v1/task/step/settle", input, { signal });
  }

  /** Run an ended task again, from a step on, with another result of that step if one is given. */
  async rerun(
    id: string,
    options: Omit<Schemas["RerunRequest"], "id"> & RequestOptions = {},
  ): Promise<Schemas["PutTask"]> {
    const { signal, ...rest } = options;
    return await this.transport.request(
      "post",
      "/v1/task/rerun",
      { ...this.at(), body: { ...rest, id } },
      { signal },
    );
  }

  /** Delete a task that has ended, and return whether there was one. */
  async remove(id: string, options: RequestOptions = {}): Promise<boolean> {
    return (await this.transport.request("delete", "/v1/task", this.at({ id }), options)).existed;
  }

  private at<Q extends object>(query: Q = {} as Q): { query: Q & { space: string } } {
    return { query: { ...query, space: this.space } };
  }
}
