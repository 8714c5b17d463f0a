/* What a run has cost: the sums of the numbers in the notes of its commits, since it parted from another run. */
import { ask, type StoredCommit } from "../lib/api.ts";

export type Cost = { moments: number; seconds: number; models: string[]; authors: string[]; sums: Record<string, number>; isWhole: boolean };

const PAGE = 500;
const MOST = 4;

/** Add up the commits of a run after a common commit; at most two thousand of them. */
export async function addUp(space: string, ref: string, since: StoredCommit | null, signal: AbortSignal): Promise<Cost> {
  const found: StoredCommit[] = [];
  let after: string | undefined;
  let isWhole = false;
  for (let page = 0; page < MOST && !isWhole; page++) {
    const { items, next } = await ask("GET /v1/history/log", { space, ref, after, limit: PAGE }, { signal });
    for (const each of items) {
      if (since && (each.id === since.id || Date.parse(each.created_at) < Date.parse(since.created_at))) isWhole = true;
      if (isWhole) break;
      found.push(each);
    }
    if (next === null) isWhole = true;
    after = next ?? undefined;
  }
  const sums: Record<string, number> = {};
  for (const { meta } of found) {
    for (const [name, value] of Object.entries(meta)) if (/^\d{1,12}(\.\d+)?$/.test(value)) sums[name] = (sums[name] ?? 0) + Number(value);
  }
  const times = [...found.map((each) => Date.parse(each.created_at)), ...(since ? [Date.parse(since.created_at)] : [])];
  return {
    moments: found.length,
    seconds: found.length ? (Math.max(...times) - Math.min(...times)) / 1000 : 0,
    models: unique(found.map((each) => each.meta.model)),
    authors: unique(found.map((each) => each.author ?? undefined)),
    sums,
    isWhole,
  };
}

function unique(values: (string | undefined)[]): string[] {
  return [...new Set(values.filter((each): each is string => !!each))];
}
