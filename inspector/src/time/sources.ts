/* Where messages are read from: the conversation of a session, or a list in a state. */
import { ask, type ConversationEntry } from "../lib/api.ts";

export type Entry = Pick<ConversationEntry, "number" | "message"> & Partial<ConversationEntry>;
export type EntryPage = { items: Entry[]; hasEarlier: boolean; hasLater: boolean; count?: number };
export type Where = { before?: number | undefined; after?: number | undefined; limit: number };
/** `key` changes when the messages do. */
export type MessageSource = { key: string; read: (where: Where, signal: AbortSignal) => Promise<EntryPage> };

/** Return the messages of a session or of one of its forks, at a moment; empty for now. */
export function sessionSource(session: string, fork: string, ref: string): MessageSource {
  return {
    key: JSON.stringify([session, fork, ref]),
    read: async ({ before, after, limit }, signal) => {
      const query = {
        session, limit, fork: fork || undefined, ref: ref || undefined,
        before: before === undefined ? undefined : String(before), after: after === undefined ? undefined : String(after),
      };
      const page = await ask("GET /v1/conversation", query, { signal });
      return { items: page.items, hasEarlier: page.previous !== null, hasLater: page.next !== null };
    },
  };
}

/** Return the messages that are a list at a path of a state. */
export function listSource(space: string, ref: string, path: string): MessageSource {
  return {
    key: JSON.stringify([space, ref, path]),
    read: async ({ before, after, limit }, signal) => {
      const state = await ask("GET /v1/history/state", { space, ref, path, limit: 1 }, { signal });
      if (state.kind !== "list") return { items: [], hasEarlier: false, hasLater: false, count: 0 };
      const count = state.count ?? 0;
      const end = Math.min(before ?? count, count);
      const start = after === undefined ? Math.max(0, end - limit) : after + 1;
      const size = after === undefined ? end - start : limit;
      const part = size > 0 && start < count ? await ask("GET /v1/history/slice", { space, ref: state.commit.id, path, start, limit: size }, { signal }) : { items: [] };
      const items = part.items.map((message, index): Entry => ({ number: start + index, message }));
      return { items, count, hasEarlier: start > 0, hasLater: start + items.length < count };
    },
  };
}

/** Return the session of a space, or null if it has none. */
export function sessionOf(space: string): string | null {
  return space.startsWith("session/") ? space.slice("session/".length) : null;
}
