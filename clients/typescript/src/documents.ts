/** Documents of a space: named values with versions. */

import { InvalidError, NotFoundError, PreconditionFailedError } from "./errors.js";
import { allOf, type Page } from "./pages.js";
import { follow, type StreamOptions } from "./streams.js";
import { delayOf, once, sleep, type RequestOptions, type Sending, type Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";
import { write, writeMember } from "./values.js";

/** A stored document; `version` is its `ETag`. */
export type DocumentEntry<T = unknown> = Omit<Schemas["Document"], "value"> & { value: T };
/** A change of a document. With `is_cut`, its values were too large for a stream: read the document. */
export type DocumentChange<T = unknown> = Omit<Schemas["WatchedChange"], "old" | "new"> & {
  old: T | null;
  new: T | null;
};

/** Options of a write under a condition. */
export interface WriteOptions extends RequestOptions {
  /** The version that must be stored; an empty text means that the document must not exist. */
  if_version?: string | undefined;
}

/** Options of `update`. */
export interface UpdateOptions<T> extends RequestOptions {
  /** The value to start from if the document does not exist. Default: an error. */
  default?: T;
  /** The largest number of attempts. Default: 100. */
  attempts?: number;
}

export class Documents {
  constructor(
    private readonly transport: Transport,
    private readonly space: string,
  ) {}

  /** Return the value of a document; undefined if it does not exist. */
  async get<T = unknown>(key: string, options: RequestOptions = {}): Promise<T | undefined> {
    return (await this.entry<T>(key, options))?.value;
  }

  /** Return a document with its version; undefined if it does not exist. */
  async entry<T = unknown>(key: string, options: RequestOptions = {}): Promise<DocumentEntry<T> | undefined> {
    try {
      const entry = await this.transport.request("get", "/v1/document", this.at(key), options);
      return entry as DocumentEntry<T>;
    } catch (error) {
      if (error instanceof NotFoundError) return undefined;
      throw error;
    }
  }

  /**
   * Write a document, and return its version; null if another write has replaced it since.
   *
   * @throws PreconditionFailedError It is not at `if_version`.
   * @throws OutcomeUnknownError No reply came. `update` and `Space.batch` repeat the request by themselves.
   */
  async put(
    key: string,
    value: unknown,
    options: WriteOptions & { ttl_s?: number } = {},
  ): Promise<string | null> {
    const query = { ...this.at(key).query, ...(options.ttl_s !== undefined && { ttl_s: options.ttl_s }) };
    const answer = await this.transport.request(
      "put",
      "/v1/document",
      { query, body: value },
      {
        ...conditional(options),
        text: write(value),
      },
    );
    return answer.version;
  }

  /** Change a document by a merge patch of RFC 7396, and return its version. A member that is null is removed. */
  async patch(key: string, patch: unknown, options: WriteOptions = {}): Promise<string | null> {
    const answer = await this.transport.request(
      "patch",
      "/v1/document",
      { ...this.at(key), body: patch },
      {
        ...conditional(options),
        text: write(patch),
        media: "application/merge-patch+json",
      },
    );
    return answer.version;
  }

  /** Delete a document, and return whether there was one. */
  async delete(key: string, options: WriteOptions = {}): Promise<boolean> {
    return (await this.transport.request("delete", "/v1/document", this.at(key), conditional(options)))
      .existed;
  }

  /**
   * Change a document by a function, and return the new value. No update of another writer is lost.
   *
   * The function gets the present value, and may be called several times. The write is applied once, also if
   * replies are lost.
   *
   * @throws NotFoundError The document does not exist, and there is no `default`.
   * @throws PreconditionFailedError Other writers were faster in all attempts.
   */
  async update<T = unknown>(
    key: string,
    fn: (value: T) => T | Promise<T>,
    options: UpdateOptions<T> = {},
  ): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      const entry = await this.entry<T>(key, options);
      if (entry === undefined && options.default === undefined) {
        throw new NotFoundError(
          `document '${key}' of '${this.space}' does not exist; put it, or give a default`,
          {
            code: "not_found",
          },
        );
      }
      const value = await fn(entry === undefined ? structuredClone(options.default as T) : entry.value);
      if (value === undefined) {
        throw new InvalidError(
          `the function passed to update('${key}') returned undefined; return the new value`,
        );
      }
      const stored = entry === undefined ? write(value) : writeMember(value, entry, "value");
      const condition = `"if_version":${JSON.stringify(entry?.version ?? "")}`;
      const part = `{"do":"put","key":${JSON.stringify(key)},${condition},"value":${stored}}`;
      const sending = { ...options, ...once(), text: `{"operations":[${part}]}` };
      try {
        await this.transport.request(
          "post",
          "/v1/batch",
          { query: { space: this.space }, body: { operations: [] } },
          sending,
        );
        return value;
      } catch (error) {
        if (!(error instanceof PreconditionFailedError) || attempt >= (options.attempts ?? 100)) throw error;
        await sleep(delayOf(Math.min(attempt, 6) - 1, 0.005), options.signal);
      }
    }
  }

  /** Yield documents by pattern and prefix, in the order of their keys. */
  list(
    options: Query<"/v1/documents", "get"> & RequestOptions = {},
  ): AsyncGenerator<DocumentEntry, void, undefined> {
    return allOf((after) => this.page({ ...options, ...(after !== undefined && { after }) }));
  }

  /** Return one page of documents. */
  async page(options: Query<"/v1/documents", "get"> & RequestOptions = {}): Promise<Page<DocumentEntry>> {
    const { signal, ...query } = options;
    return await this.transport.request(
      "get",
      "/v1/documents",
      { query: { ...query, space: this.space } },
      { signal },
    );
  }

  /** Yield each change of the documents that match a pattern, from now on or behind a position. */
  async *watch<T = unknown>(
    pattern = "*",
    options: StreamOptions = {},
  ): AsyncGenerator<DocumentChange<T>, void, undefined> {
    const query = { space: this.space, pattern };
    for await (const { data } of follow<DocumentChange<T>>(
      this.transport,
      "/v1/documents/watch",
      query,
      options,
    )) {
      yield data;
    }
  }

  private at(key: string): { query: { space: string; key: string } } {
    return { query: { space: this.space, key } };
  }
}

function conditional(options: WriteOptions): Sending {
  const { if_version, signal } = options;
  if (if_version === undefined) return { signal };
  const condition = if_version === "" ? { "if-none-match": "*" } : { "if-match": `"${if_version}"` };
  return { signal, headers: condition };
}
