/** The conversation of a session: messages, and replies while they are written. */

import { follow, type StreamOptions } from "./streams.js";
import { LeaseLostError } from "./errors.js";
import type { RequestOptions, Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";

/** A message with what is stored about it. */
export type ConversationEntry = Schemas["ConversationEntry"];
/** A change of a conversation: a message, or a piece of a reply that is being written. */
export type ConversationChange = Schemas["ConversationChange"];

export class Conversation {
  constructor(
    private readonly transport: Transport,
    readonly session: string,
    readonly fork: string | undefined,
  ) {}

  /** Return a page of messages, the newest ones by default; `previous` and `next` lead on. */
  async page(
    options: Query<"/v1/conversation", "get"> & RequestOptions = {},
  ): Promise<Schemas["ConversationPage"]> {
    const { signal, ...query } = options;
    return await this.transport.request(
      "get",
      "/v1/conversation",
      { query: { ...query, ...this.at } },
      { signal },
    );
  }

  /** Append a message in the form of any library, and return its number. One with a known `id` is not added again. */
  async append(
    message: unknown,
    options: RequestOptions & { id?: string; meta?: unknown } = {},
  ): Promise<number> {
    const { signal, ...rest } = options;
    const input = { query: this.at, body: { ...rest, message } };
    const sending = { signal, safe: rest.id !== undefined };
    return (await this.transport.request("post", "/v1/conversation", input, sending)).number;
  }

  /** Yield all messages, or those behind a position, and then each change as it comes. */
  async *follow(
    options: StreamOptions & { deltas?: boolean } = {},
  ): AsyncGenerator<ConversationChange, void, undefined> {
    const { deltas, ...rest } = options;
    const query = { ...this.at, ...(deltas !== undefined && { deltas }) };
    for await (const { data } of follow<ConversationChange>(
      this.transport,
      "/v1/conversation/follow",
      query,
      rest,
    )) {
      yield data;
    }
  }

  /**
   * Write a reply that followers read while it is written, and return how it has ended.
   *
   * When the function returns, the reply becomes a message. If it throws, the reply is kept as failed, and the
   * error is thrown again. A caller of `stop` ends it: then `Reply.stopped` is true and the signal is aborted.
   *
   * @throws ConflictError Another reply is being written.
   * @throws LeaseLostError The server was away for longer than `lease_s`, so the reply was ended as failed.
   */
  async reply(
    fn: (reply: Reply) => void | Promise<void>,
    options: RequestOptions & ReplyOptions = {},
  ): Promise<"done" | "stopped" | "failed"> {
    const { signal, id, lease_s = 30, flush_s = 0.1, meta = {} } = options;
    const input = { query: this.at, body: { ...(id !== undefined && { id }), lease_s } };
    const begun = await this.transport.request("post", "/v1/conversation/reply", input, { signal });
    const reply = new Reply(this.transport, this.at, begun, lease_s, flush_s);
    try {
      await fn(reply);
    } catch (error) {
      await reply.end("failed", {});
      throw error;
    }
    return await reply.end("done", meta);
  }

  /** End the reply that is being written, in whatever process, and return whether there was one. */
  async stop(options: RequestOptions = {}): Promise<boolean> {
    return (await this.transport.request("post", "/v1/conversation/stop", { query: this.at }, options))
      .stopped;
  }

  private get at(): { session: string; fork?: string } {
    return { session: this.session, ...(this.fork !== undefined && { fork: this.fork }) };
  }
}

/** Options of `reply`. */
export interface ReplyOptions {
  /** The id of the reply and of its message. Default: a random one. */
  id?: string;
  /** Seconds that the server may be away before the reply is ended as failed. Default: 30. */
  lease_s?: number;
  /** Seconds for which text is gathered before it is sent. Default: 0.1. */
  flush_s?: number;
  /** Notes that are stored with the message. */
  meta?: Record<string, unknown>;
}

/** A reply that is being written. */
export class Reply {
  private readonly ending = new AbortController();
  private text = "";
  private flushing: Promise<void> = Promise.resolve();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private error: unknown;
  private isOver = false;

  constructor(
    private readonly transport: Transport,
    private readonly at: { session: string; fork?: string },
    private state: Schemas["ReplyState"],
    private readonly lease_s: number,
    private readonly flush_s: number,
  ) {
    this.plan(lease_s / 3);
  }

  /** The id of the reply and of its message. */
  get id(): string {
    return this.state.id;
  }

  /** Whether a caller of `Conversation.stop` has ended it. */
  get stopped(): boolean {
    return this.state.status === "stopped";
  }

  /** Aborted when the reply was stopped or lost. Pass it to the model. */
  get signal(): AbortSignal {
    return this.ending.signal;
  }

  /** Add text. It is sent a moment later, together with what follows. */
  write(text: string): void {
    if (this.error !== undefined) throw this.error;
    if (this.stopped || text === "") return;
    if (this.text === "") this.plan(this.flush_s);
    this.text += text;
  }

  /** End the reply. `Conversation.reply` does it. */
  async end(how: "done" | "failed", meta: Record<string, unknown>): Promise<"done" | "stopped" | "failed"> {
    this.isOver = true;
    clearTimeout(this.timer);
    await this.flushing;
    if (this.error !== undefined && how === "done") throw this.error;
    const body = { ...this.proof, how, meta, text: this.take() };
    try {
      this.state = await this.post("/v1/conversation/reply/end", body);
    } catch (error) {
      if (how === "failed" && error instanceof LeaseLostError) return "failed"; // by the server, as wanted
      throw error;
    }
    return this.state.status ?? how;
  }

  /** Send what was written, or renew the lease, after some seconds. */
  private plan(seconds: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (this.flushing = this.flushing.then(() => this.flush())), seconds * 1000);
  }

  private async flush(): Promise<void> {
    if (this.isOver) return; // the end sends the rest
    try {
      this.state = await this.post("/v1/conversation/reply/extend", {
        ...this.proof,
        text: this.take(),
        lease_s: this.lease_s,
      });
      if (this.stopped) this.ending.abort(new Error("the reply was stopped"));
    } catch (error) {
      this.error = error; // of the next write, or of the end
      this.ending.abort(error);
    }
    if (!this.isOver && this.error === undefined && !this.stopped) {
      this.plan(this.text === "" ? this.lease_s / 3 : this.flush_s);
    }
  }

  private take(): string {
    const { text } = this;
    this.text = "";
    return text;
  }

  private get proof(): { id: string; token: number; position: string } {
    const { id, token, position } = this.state;
    return { id, token, position };
  }

  private async post(
    path: `/v1/conversation/reply/${"extend" | "end"}`,
    body: object,
  ): Promise<Schemas["ReplyState"]> {
    // Sent again with the same proof, it is applied once.
    return await this.transport.request(
      "post",
      path,
      { query: this.at, body: body as never },
      { safe: true },
    );
  }
}
