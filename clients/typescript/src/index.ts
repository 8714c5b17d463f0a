/** The client of a keepstate server, for Node and browsers. */

export { Approvals, type Approval } from "./approvals.js";
export { Keepstate, Space, type Lease } from "./client.js";
export {
  Conversation,
  Reply,
  type ReplyOptions,
  type ConversationChange,
  type ConversationEntry,
} from "./conversations.js";
export {
  Documents,
  type DocumentChange,
  type DocumentEntry,
  type UpdateOptions,
  type WriteOptions,
} from "./documents.js";
export * from "./errors.js";
export { Events, type AppendOptions, type StoredEvent } from "./events.js";
export { History, type Commit, type StatePath } from "./history.js";
export type { Page } from "./pages.js";
export { Queue, type ClaimOptions, type PutOptions, type TaskInfo } from "./queue.js";
export type { StreamOptions } from "./streams.js";
export { Suspended, Task, type StepAnswer } from "./task.js";
export type { KeepstateOptions, RequestOptions } from "./transport.js";
export type { Answer, Input, Method, Path, Schemas } from "./types.js";
export { Float, read, write } from "./values.js";
export type { Handler, RunOptions, RunReport } from "./worker.js";
