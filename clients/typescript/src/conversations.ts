/** The conversation of a session: messages, and replies while they are written. */

import { follow, type StreamOptions } from "./streams.js";
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

  /** End the reply that is being written, in whatever process, and return whether there was one. */
  async stop(options: RequestOptions = {}): Promise<boolean> {
    return (await this.transport.request("post", "/v1/conversation/stop", { query: this.at }, options))
      .stopped;
  }

  private get at(): { session: string; fork?: string } {
    return { session: this.session, ...(this.fork !== undefined && { fork: this.fork }) };
  }
}
