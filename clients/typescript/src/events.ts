/** Events of a space: streams that only grow. */

import { allOf, type Page } from "./pages.js";
import { follow, type StreamOptions } from "./streams.js";
import { once, type RequestOptions, type Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";

/** A stored event; `position` continues a reading or a stream behind it. */
export type StoredEvent<T = unknown> = Omit<Schemas["StoredEvent"], "data"> & { data: T };

/** Options of `append`. */
export interface AppendOptions extends RequestOptions {
  stream?: string;
  /** An id for each event. An event whose id is in the stream is not appended again. */
  ids?: (string | null)[];
  type?: string;
  correlation?: string;
  cause?: string;
}

export class Events {
  constructor(
    private readonly transport: Transport,
    private readonly space: string,
  ) {}

  /** Append events in one batch, once however often the request is sent. Return the revision. */
  async append(events: unknown[], options: AppendOptions = {}): Promise<number> {
    const { signal, stream = "main", ...rest } = options;
    const input = { query: { space: this.space, stream }, body: { ...rest, events } };
    return (await this.transport.request("post", "/v1/events", input, { signal, ...once() })).revision;
  }

  /** Yield the events of a stream that are stored now. */
  read<T = unknown>(options: ReadOptions = {}): AsyncGenerator<StoredEvent<T>, void, undefined> {
    const cursor = options.reverse === true ? "before" : "after";
    return allOf<StoredEvent<T>>((after) =>
      this.page({ ...options, ...(after !== undefined && { [cursor]: after }) }),
    );
  }

  /** Return one page of events. */
  async page<T = unknown>(options: ReadOptions = {}): Promise<Page<StoredEvent<T>>> {
    const { signal, stream = "main", ...query } = options;
    const input = { query: { ...query, space: this.space, stream } };
    return (await this.transport.request("get", "/v1/events", input, { signal })) as Page<StoredEvent<T>>;
  }

  /**
   * Yield the events of a stream from its beginning or behind a position, and then each as it comes.
   *
   * An event that is too large for a stream is read by itself, so its data is always there.
   */
  async *follow<T = unknown>(
    options: StreamOptions & { stream?: string } = {},
  ): AsyncGenerator<StoredEvent<T>, void, undefined> {
    const { stream = "main", ...rest } = options;
    const query = { space: this.space, stream };
    let last = options.after;
    for await (const { data } of follow<StoredEvent<T>>(this.transport, "/v1/events/follow", query, rest)) {
      let event = data;
      if (event.is_cut === true) {
        const after = last === undefined ? {} : { after: last };
        const page = await this.page<T>({ stream, limit: 1, signal: options.signal, ...after });
        event = page.items[0] ?? event;
      }
      last = event.position ?? last;
      yield event;
    }
  }

  /** Return the names of the streams, the first 1,000. */
  async streams(options: RequestOptions = {}): Promise<string[]> {
    return (
      await this.transport.request("get", "/v1/events/streams", { query: { space: this.space } }, options)
    ).items;
  }
}

type ReadOptions = Query<"/v1/events", "get"> & RequestOptions & { stream?: string };
