/* Sources of a tree: a value that the page holds, or the state of a commit, which is read by slices. */
import { ask } from "./api.ts";

export type Step = string | number;
export type Path = readonly Step[];

/** A member of a dict or a list: its value if that is short, and its kind and count otherwise. */
export type Member = { step: Step; value?: unknown; kind?: string | null; count?: number | null };

/** A part of a value: the members of a dict or a list from an offset on, or a single value. */
export type Part = {
  kind: string;
  value?: unknown;
  count: number;
  members: Member[];
  /** The offset of the next members; null at the end. */
  next: number | null;
};

/** A value as a tree reads it. `key` changes when the value does. */
export type Source = { key: string; read: (path: Path, after: number, limit: number, signal: AbortSignal) => Promise<Part> };

/** Return the source of a value that the page holds. */
export function valueSource(value: unknown, key: string): Source {
  return {
    key,
    read: async (path, after, limit) => {
      const found = path.reduce<unknown>((part, step) => (part as Record<Step, unknown>)[step], value);
      if (!isContainer(found)) return { kind: "value", value: found, count: 0, members: [], next: null };
      const all = Array.isArray(found) ? found : Object.keys(found);
      const members = all.slice(after, after + limit).map((each: unknown, index): Member => {
        const step = Array.isArray(found) ? after + index : (each as string);
        const inner = (found as Record<Step, unknown>)[step];
        if (!isContainer(inner)) return { step, value: inner };
        return { step, kind: kindOf(inner), count: Object.keys(inner).length };
      });
      const next = after + limit < all.length ? after + limit : null;
      return { kind: kindOf(found), count: all.length, members, next };
    },
  };
}

/** Return the source of the state of a commit. */
export function stateSource(space: string, ref: string): Source {
  return {
    key: `${space}\n${ref}`,
    read: async (path, after, limit, signal) => {
      const query = { space, ref, path: JSON.stringify(path), after: after ? after - 1 : undefined, limit };
      const state = await ask("GET /v1/history/state", query, { signal });
      if (state.kind === "value") return { kind: "value", value: state.value, count: 0, members: [], next: null };
      const members = (state.items ?? []) as Member[];
      return { kind: state.kind, count: state.count ?? members.length, members, next: typeof state.next === "number" ? state.next + 1 : null };
    },
  };
}

function isContainer(value: unknown): value is object {
  return typeof value === "object" && value !== null && scalar(value) === null;
}

/** Return the text and the type of a single value without a JSON type, such as an instant or a large
 *  integer; null for other values. */
export function scalar(value: unknown): [text: string, type: string] | null {
  if (typeof value !== "object" || value === null) return null;
  const { "@type": type, value: inner, ...rest } = value as Record<string, unknown>;
  if (typeof type !== "string" || Object.keys(rest).length > 0 || inner === null) return null;
  return ["string", "number", "boolean"].includes(typeof inner) ? [String(inner), type] : null;
}

function kindOf(value: object): string {
  if (Array.isArray(value)) return "list";
  const type = (value as Record<string, unknown>)["@type"];
  return typeof type === "string" ? type : "dict";
}
