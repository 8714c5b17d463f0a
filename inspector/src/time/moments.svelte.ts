/* The moments of a branch by number, read in pages where a view looks.

   A history of a million moments costs the pages in sight. Nothing is asked for while a slider moves, only where
   it rests: a browser has six connections, and what waits in line is late. */
import { ask, RequestError, type NamedCommit, type StoredCommit } from "../lib/api.ts";
import { here } from "../lib/place.svelte.ts";
import { reportError } from "../lib/status.svelte.ts";

const PAGE = 64;
const MOST_PAGES = 64;
const REST = 60;
const LOOK_AGAIN = 3_000;

type Row = StoredCommit | undefined;

export class Moments {
  /** The number of the newest moment; 0 until it is known, and in an empty history. */
  total = $state(0);
  isRead = $state(false);
  branches = $state.raw<readonly NamedCommit[]>([]);
  tags = $state.raw<readonly NamedCommit[]>([]);
  error = $state.raw<RequestError | undefined>();
  readonly space: string;
  readonly branch: string;
  #pages = $state.raw<ReadonlyMap<number, readonly Row[]>>(new Map());
  #reading = new Map<number, AbortController>();
  #timer = 0;
  #look: () => Promise<void> = () => Promise.resolve();

  constructor(space: string, branch: string) {
    this.space = space;
    this.branch = branch;
  }

  /** Read the branches and tags now and while the page is seen; returns what stops it. */
  watch(): () => void {
    const aborter = new AbortController();
    const read = async () => {
      if (document.hidden && this.isRead) return;
      try {
        const found = await ask("GET /v1/history/references", { space: this.space }, { signal: aborter.signal });
        const total = found.branches.find((each) => each.name === this.branch)?.number ?? 0;
        if (total !== this.total && this.total) this.#drop(this.#pageOf(Math.min(total || 1, this.total)));
        [this.branches, this.tags, this.total, this.error] = [found.branches, found.tags, total, undefined];
      } catch (error) {
        if (aborter.signal.aborted) return;
        this.error = reportError(error);
      }
      this.isRead = true;
    };
    this.#look = read;
    void read();
    const timer = setInterval(read, LOOK_AGAIN);
    return () => {
      aborter.abort();
      clearInterval(timer);
      clearTimeout(this.#timer);
      for (const each of this.#reading.values()) each.abort();
    };
  }

  /** Read the branches and tags again, because something was written. */
  look(): void {
    void this.#look();
  }

  /** The moment of a number, if its page was read. */
  get(number: number): Row {
    return this.#pages.get(this.#pageOf(number))?.[(number - 1) % PAGE];
  }

  /** Read the pages of some numbers, once they have been in sight for a short time. */
  need(first: number, last: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.readNow(first, last), REST);
  }

  /** Read the pages of some numbers, and end what is read of others. */
  readNow(first: number, last: number): void {
    const [low, high] = [this.#pageOf(Math.max(1, first)), this.#pageOf(Math.max(1, last))];
    for (const [page, aborter] of this.#reading) if (page < low || page > high) aborter.abort();
    for (let page = low; page <= high; page++) void this.#read(page);
  }

  async #read(page: number): Promise<void> {
    if (this.#reading.has(page) || this.#pages.has(page) || page * PAGE >= this.total) return;
    const aborter = new AbortController();
    this.#reading.set(page, aborter);
    const rows: Row[] = [];
    const end = Math.min((page + 1) * PAGE, this.total);
    try {
      for (let next = page * PAGE + 1; next <= end; ) {
        const query = { space: this.space, ref: this.branch, first: next, reverse: true, limit: PAGE };
        const found = (await ask("GET /v1/history/log", query, { signal: aborter.signal })).items;
        // What a merge brought in has no number in this line.
        const numbered = found.filter((each) => each.number !== null && each.number <= end);
        for (const each of numbered) rows[each.number! - 1 - page * PAGE] = each;
        if (!numbered.length || found.length < PAGE) break;
        next = numbered.at(-1)!.number! + 1;
      }
      const pages = new Map([...this.#pages, [page, rows] as const]);
      for (const key of pages.keys()) {
        if (pages.size <= MOST_PAGES) break;
        pages.delete(key);
      }
      this.#pages = pages;
    } catch (error) {
      if (!aborter.signal.aborted) this.error = reportError(error);
    } finally {
      this.#reading.delete(page);
    }
  }

  #drop(page: number): void {
    const pages = new Map(this.#pages);
    pages.delete(page);
    this.#pages = pages;
  }

  #pageOf(number: number): number {
    return Math.floor((number - 1) / PAGE);
  }
}

/** Return the revision of a moment: a number of a branch, the id of a commit, or empty for the newest. */
export function revision(branch: string, at: string): string {
  if (!at) return branch;
  return /^\d{1,9}$/.test(at) ? `${branch}#${at}` : at;
}

/** The revision that the place shows. */
export function present(): string {
  return revision(here.branch, here.at);
}

/** Return the place of a commit that was listed: by its number if it is in a branch, otherwise by its id. */
export function placeOf(commit: Pick<StoredCommit, "id" | "number" | "branch">): { branch?: string; at: string } {
  if (commit.number !== null && commit.branch) return { branch: commit.branch, at: String(commit.number) };
  return { at: commit.id };
}
