/* What the frame shows of the page itself: notices, errors, and whether the browser is still let in. */
import { untrack } from "svelte";
import { RequestError } from "./api.ts";

export const status = $state({
  /** The last notice, such as "Task requeued". */
  notice: "",
  isError: false,
  /** True once the server refused the browser's session. */
  isLockedOut: false,
  /** How many parts of the view wait for their first answer. */
  reading: 0,
});

/** Note that a part of the view waits for its first answer. Returns what ends that, at most once. */
export function beginReading(): () => void {
  let isOpen = true;
  untrack(() => (status.reading += 1));
  return () => {
    if (isOpen) untrack(() => (status.reading -= 1));
    isOpen = false;
  };
}

let timer = 0;

/** Show a notice for some seconds. An error stays until the next notice. */
export function say(notice: string, { isError = false } = {}): void {
  clearTimeout(timer);
  status.notice = notice;
  status.isError = isError;
  if (!isError && notice) timer = setTimeout(() => (status.notice = ""), 6_000);
}

/** Return an error as a RequestError, and note it if the browser is locked out. */
export function reportError(error: unknown): RequestError {
  if (error instanceof RequestError) {
    if (error.isLockedOut) status.isLockedOut = true;
    return error;
  }
  console.error(error);
  const detail = error instanceof Error ? error.message : String(error);
  return new RequestError({ code: "page_error", status: -1, detail: `The page failed: ${detail}` });
}

/** Run what a person asked for; show its notice, or its error. Returns whether it succeeded. */
export async function act(work: () => Promise<string>): Promise<boolean> {
  try {
    say(await work());
    return true;
  } catch (error) {
    say(reportError(error).message, { isError: true });
    return false;
  }
}
