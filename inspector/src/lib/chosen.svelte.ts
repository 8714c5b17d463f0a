/* Rows that a person chose in a list, and what is done to each of them. */
import { reportError } from "./status.svelte.ts";

export type Failure = { name: string; reason: string };

export class Chosen<Row> {
  /** What is being done: how many are done, of how many; null for nothing. */
  progress = $state.raw<{ done: number; of: number } | null>(null);
  failures = $state.raw<readonly Failure[]>([]);
  #rows = $state.raw<ReadonlyMap<string, Row>>(new Map());
  #last = -1;

  /** @param keyOf Returns the key of a row, which stays when the list is read again. */
  constructor(private readonly keyOf: (row: Row) => string) {}

  get rows(): Row[] {
    return [...this.#rows.values()];
  }

  get count(): number {
    return this.#rows.size;
  }

  has(row: Row): boolean {
    return this.#rows.has(this.keyOf(row));
  }

  /** Choose a row or leave it out; with `isRange`, choose all from the last one to this one. */
  toggle(list: readonly Row[], index: number, isRange: boolean): void {
    const rows = new Map(this.#rows);
    const from = isRange && this.#last >= 0 && this.#last < list.length ? this.#last : index;
    if (from === index && rows.delete(this.keyOf(list[index]!))) {
      this.#last = index;
      this.#rows = rows;
      return;
    }
    for (let at = Math.min(from, index); at <= Math.max(from, index); at++) rows.set(this.keyOf(list[at]!), list[at]!);
    this.#last = index;
    this.#rows = rows;
  }

  /** Choose all rows of a list, or none if all are chosen. */
  all(list: readonly Row[]): void {
    this.#rows = list.every((row) => this.has(row)) ? new Map() : new Map(list.map((row) => [this.keyOf(row), row]));
  }

  clear(): void {
    [this.#rows, this.#last, this.failures] = [new Map(), -1, []];
  }

  /** Do something to each chosen row, a few at once. Returns the sum; rows that failed stay chosen. */
  async each(work: (row: Row) => Promise<number>, nameOf: (row: Row) => string): Promise<number> {
    const todo = this.rows;
    const failed: Failure[] = [];
    const left = new Map<string, Row>();
    let [sum, next, done] = [0, 0, 0];
    this.progress = { done, of: todo.length };
    const one = async () => {
      for (let row = todo[next++]; row !== undefined; row = todo[next++]) {
        try {
          sum += await work(row);
        } catch (error) {
          failed.push({ name: nameOf(row), reason: reportError(error).message });
          left.set(this.keyOf(row), row);
        }
        this.progress = { done: ++done, of: todo.length };
      }
    };
    await Promise.all([one(), one(), one(), one()]);
    [this.failures, this.#rows, this.progress] = [failed, left, null];
    return sum;
  }
}
