/** The history of a space: its commits, and every past state. A `ref` is a branch, a tag, an id or a place such as `main~3`. */

import { allOf, type Page } from "./pages.js";
import type { RequestOptions, Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";
import { write } from "./values.js";

/** A commit of a listing. */
export type Commit = Schemas["CommitPage"]["items"][number];
/** A way into a state: keys and indexes. */
export type StatePath = (string | number)[];

export class History {
  constructor(
    private readonly transport: Transport,
    private readonly space: string,
  ) {}

  /** Yield commits, the newest first unless the options say otherwise. */
  log(
    options: Omit<Query<"/v1/history/log", "get">, "path"> & RequestOptions & { path?: StatePath } = {},
  ): AsyncGenerator<Commit, void, undefined> {
    return allOf((after) => this.page({ ...options, ...(after !== undefined && { after }) }));
  }

  /** Return one page of commits. */
  async page(
    options: Omit<Query<"/v1/history/log", "get">, "path"> & RequestOptions & { path?: StatePath } = {},
  ): Promise<Page<Commit>> {
    const { signal, path, ...query } = options;
    const input = this.at({ ...query, ...(path !== undefined && { path: write(path) }) });
    return await this.transport.request("get", "/v1/history/log", input, { signal });
  }

  /** Return a commit. */
  async commit(ref = "main", options: RequestOptions = {}): Promise<Schemas["StoredCommit"]> {
    return await this.transport.request("get", "/v1/history/commit", this.at({ ref }), options);
  }

  /** Return a part of a past state: its value, or its keys if it is large. */
  async state(
    ref = "main",
    path: StatePath = [],
    options: RequestOptions & { after?: number; limit?: number } = {},
  ): Promise<Schemas["State"]> {
    const { signal, ...query } = options;
    return await this.transport.request(
      "get",
      "/v1/history/state",
      this.at({ ...query, ref, path: write(path) }),
      { signal },
    );
  }

  /** Return some items of a list of a past state. */
  async slice(
    ref: string,
    path: StatePath,
    options: RequestOptions & { start?: number; limit?: number } = {},
  ): Promise<Schemas["StatePart"]> {
    const { signal, ...query } = options;
    return await this.transport.request(
      "get",
      "/v1/history/slice",
      this.at({ ...query, ref, path: write(path) }),
      { signal },
    );
  }

  /** Return what changed between two revisions, in all of the state or below a path. */
  async diff(
    a: string,
    b: string,
    options: RequestOptions & { path?: StatePath; limit?: number } = {},
  ): Promise<Schemas["Differences"]> {
    const { signal, path, ...query } = options;
    const input = this.at({ ...query, a, b, ...(path !== undefined && { path: write(path) }) });
    return await this.transport.request("get", "/v1/history/diff", input, { signal });
  }

  /** Return the commit that gave a part of the state its value. */
  async blame(path: StatePath, ref = "main", options: RequestOptions = {}): Promise<Schemas["BlamedCommit"]> {
    return await this.transport.request(
      "get",
      "/v1/history/blame",
      this.at({ ref, path: write(path) }),
      options,
    );
  }

  /** Return the last commits that changed a part of the state. */
  async changes(
    path: StatePath,
    ref = "main",
    options: RequestOptions & { limit?: number } = {},
  ): Promise<Schemas["BlamedCommits"]["items"]> {
    const { signal, ...query } = options;
    const input = this.at({ ...query, ref, path: write(path) });
    return (await this.transport.request("get", "/v1/history/changes", input, { signal })).items;
  }

  /** Return the branches and tags. */
  async references(options: RequestOptions = {}): Promise<Schemas["References"]> {
    return await this.transport.request("get", "/v1/history/references", this.at({}), options);
  }

  private at<Q extends object>(query: Q): { query: Q & { space: string } } {
    return { query: { ...query, space: this.space } };
  }
}
