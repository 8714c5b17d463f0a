/** The client of a server, and its spaces. */

import { Approvals } from "./approvals.js";
import { Conversation } from "./conversations.js";
import { Documents } from "./documents.js";
import { InvalidError } from "./errors.js";
import { Events } from "./events.js";
import { History } from "./history.js";
import { allOf } from "./pages.js";
import { Queue } from "./queue.js";
import { once, Transport, type KeepstateOptions, type RequestOptions, type Sending } from "./transport.js";
import type { Answer, Input, Method, Path, Query, Schemas } from "./types.js";

/** A held lease. Its name and token prove it. */
export type Lease = Schemas["HeldLease"];

/** A client of a server. It holds no connection, so there is nothing to close. */
export class Keepstate {
  private readonly transport: Transport;

  /**
   * @param url The address of the server, such as `http://127.0.0.1:8484`.
   */
  constructor(url: string | URL, options: KeepstateOptions = {}) {
    this.transport = new Transport(url, options);
  }

  /** Return a space. Nothing is created before something is written. */
  space(name: string): Space {
    if (name === "") throw new InvalidError("the name of a space is empty; give one");
    return new Space(this.transport, name);
  }

  /** Return the conversation of a session, or a fork of it. */
  conversation(session: string, options: { fork?: string } = {}): Conversation {
    return new Conversation(this.transport, session, options.fork);
  }

  /** Yield the spaces that hold data and that the key reaches. */
  spaces(
    options: Query<"/v1/spaces", "get"> & RequestOptions = {},
  ): AsyncGenerator<Schemas["SpacePage"]["items"][number], void, undefined> {
    const { signal, ...query } = options;
    return allOf((after) =>
      this.transport.request(
        "get",
        "/v1/spaces",
        { query: { ...query, ...(after !== undefined && { after }) } },
        { signal },
      ),
    );
  }

  /** Yield sessions, queues, approvals and other subjects of all spaces. */
  find(
    options: Query<"/v1/find", "get"> & RequestOptions = {},
  ): AsyncGenerator<Schemas["SubjectPage"]["items"][number], void, undefined> {
    const { signal, ...query } = options;
    return allOf((after) =>
      this.transport.request(
        "get",
        "/v1/find",
        { query: { ...query, ...(after !== undefined && { after }) } },
        { signal },
      ),
    );
  }

  /** Send a request of any operation of the OpenAPI document, and return its answer. */
  async request<P extends Path, M extends Method<P>>(
    method: M,
    path: P,
    input: Input<P, M>,
    sending: Sending = {},
  ): Promise<Answer<P, M>> {
    return await this.transport.request(method, path, input, sending);
  }
}

/** A space: what is in it can change together. */
export class Space {
  readonly documents: Documents;
  readonly events: Events;
  readonly queue: Queue;
  readonly approvals: Approvals;
  readonly history: History;

  constructor(
    private readonly transport: Transport,
    readonly name: string,
  ) {
    this.documents = new Documents(transport, name);
    this.events = new Events(transport, name);
    this.queue = new Queue(transport, name);
    this.approvals = new Approvals(transport, name);
    this.history = new History(transport, name);
  }

  /**
   * Apply operations together or not at all, once however often the request is sent.
   *
   * Under a `lease`, the batch is refused if the lease was lost. It is then sent once: if no reply comes,
   * `OutcomeUnknownError` says so.
   *
   * @throws PreconditionFailedError A document is not at its `if_version`.
   * @throws LeaseLostError The lease or a claim is not held any more.
   */
  async batch(
    operations: Schemas["Batch"]["operations"],
    options: RequestOptions & { message?: string; lease?: Pick<Lease, "name" | "token"> } = {},
  ): Promise<Schemas["Applied"]> {
    const { signal, message = "", lease } = options;
    const held = lease === undefined ? {} : { lease: { name: lease.name, token: lease.token } };
    const input = { query: { space: this.name }, body: { operations, message, ...held } };
    return await this.transport.request("post", "/v1/batch", input, {
      signal,
      ...(lease === undefined && once()),
    });
  }

  /** Acquire a lease for `ttl_s` seconds, and wait for it up to `wait_s` seconds. */
  async acquire(name: string, options: RequestOptions & { ttl_s: number; wait_s?: number }): Promise<Lease> {
    const { signal, ...rest } = options;
    const input = { query: { space: this.name }, body: { name, ...rest } };
    return await this.transport.request("post", "/v1/leases/acquire", input, { signal });
  }

  /** Renew a held lease for as long as it was acquired for, or for `ttl_s` seconds. */
  async renew(lease: Lease, options: RequestOptions & { ttl_s?: number } = {}): Promise<Lease> {
    const { name, token } = lease;
    const input = { query: { space: this.name }, body: { name, token, ttl_s: options.ttl_s ?? lease.ttl_s } };
    return await this.transport.request("post", "/v1/leases/renew", input, {
      signal: options.signal,
      safe: true,
    });
  }

  /** Release a lease, and return whether it was still held. */
  async release(lease: Pick<Lease, "name" | "token">, options: RequestOptions = {}): Promise<boolean> {
    const { name, token } = lease;
    const input = { query: { space: this.name }, body: { name, token } };
    return (await this.transport.request("post", "/v1/leases/release", input, { ...options, safe: true }))
      .was_held;
  }
}
