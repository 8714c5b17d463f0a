/* A value that the server answers, read again when what it depends on changes. */
import { RequestError } from "./api.ts";
import { untrack } from "svelte";
import { beginReading, reportError } from "./status.svelte.ts";

/** Make it while a component initialises: `const page = new Loaded((signal) => ask(…, { signal }))`. What the
 *  function reads before its first `await` is followed; null means that nothing is to be read now. */
export class Loaded<T> {
  /** The last answer. It stays while the next one is on its way. */
  value = $state.raw<T | undefined>();
  error = $state.raw<RequestError | undefined>();
  isLoading = $state(false);
  #again = $state(0);

  constructor(read: (signal: AbortSignal) => Promise<T> | null) {
    $effect(() => {
      void this.#again;
      const aborter = new AbortController();
      const reading = read(aborter.signal);
      if (reading === null) {
        this.value = this.error = undefined;
        this.isLoading = false;
        return;
      }
      this.isLoading = true;
      const isFirst = untrack(() => this.value === undefined && this.error === undefined);
      const settle = isFirst ? beginReading() : () => undefined;
      reading.then(
        (value) => {
          if (aborter.signal.aborted) return;
          settle();
          this.value = value;
          this.error = undefined;
          this.isLoading = false;
        },
        (error: unknown) => {
          if (aborter.signal.aborted) return;
          settle();
          this.error = reportError(error);
          this.isLoading = false;
        },
      );
      return () => {
        settle();
        aborter.abort();
      };
    });
  }

  /** Read again. */
  reload(): void {
    this.#again += 1;
  }
}
