/** Approvals of a space: questions to people, and their answers. */

import { allOf } from "./pages.js";
import { newToken, type RequestOptions, type Transport } from "./transport.js";
import type { Query, Schemas } from "./types.js";

/** A question with its answer, if there is one. */
export type Approval = Schemas["StoredApproval"];

export class Approvals {
  constructor(
    private readonly transport: Transport,
    private readonly space: string,
  ) {}

  /** Ask people. Asked again under one `id`, it is the same approval. */
  async ask(
    question: string,
    options: Omit<Schemas["Question"], "question"> & RequestOptions = {},
  ): Promise<Approval> {
    const { signal, ...rest } = options;
    const input = { ...this.at(), body: { ...rest, id: rest.id ?? newToken(), question } };
    return await this.transport.request("post", "/v1/approvals", input, { signal, safe: true });
  }

  /**
   * Answer as the key, or as the person of `on_behalf_of`.
   *
   * @param approval The approval as the person saw it: the answer fails if it is another one now.
   * @throws ApprovalClosedError It was answered otherwise, has expired or was withdrawn.
   */
  async answer(
    approval: Pick<Approval, "id" | "digest">,
    value: unknown,
    options: RequestOptions & { note?: string } = {},
  ): Promise<Approval> {
    const { signal, ...rest } = options;
    const input = { ...this.at(), body: { ...rest, id: approval.id, saw: approval.digest, value } };
    return await this.transport.request("post", "/v1/approval/answer", input, { signal, safe: true });
  }

  /** Close an approval without an answer. */
  async withdraw(id: string, options: RequestOptions & { reason?: string } = {}): Promise<Approval> {
    const { signal, ...rest } = options;
    return await this.transport.request(
      "post",
      "/v1/approval/withdraw",
      { ...this.at(), body: { id, ...rest } },
      { signal },
    );
  }

  /** Return an approval. */
  async get(id: string, options: RequestOptions = {}): Promise<Approval> {
    return await this.transport.request("get", "/v1/approval", this.at({ id }), options);
  }

  /** Yield the pending approvals, or those that one person may answer. */
  pending(
    options: Query<"/v1/approvals", "get"> & RequestOptions = {},
  ): AsyncGenerator<Approval, void, undefined> {
    const { signal, ...query } = options;
    return allOf((after) =>
      this.transport.request(
        "get",
        "/v1/approvals",
        this.at({ ...query, ...(after !== undefined && { after }) }),
        { signal },
      ),
    );
  }

  /** Return what happened to an approval. */
  async log(id: string, options: RequestOptions = {}): Promise<Schemas["LogLine"][]> {
    return (await this.transport.request("get", "/v1/approval/log", this.at({ id }), options)).items;
  }

  private at<Q extends object>(query: Q = {} as Q): { query: Q & { space: string } } {
    return { query: { ...query, space: this.space } };
  }
}
