/* Paths into a state, as people read them. */
import { visible } from "../lib/text.ts";

/** Return a path as text: `plan.steps[3]`; the whole state is "the state". */
export function pathText(path: readonly unknown[]): string {
  let text = "";
  for (const step of path) {
    if (typeof step === "string" && /^[\p{L}_][\p{L}\p{N}_]*$/u.test(step)) text += text ? `.${step}` : step;
    else text += `[${JSON.stringify(step)}]`;
  }
  return visible(text, 400) || "the state";
}

/** Return the path of a link, or null if it is not one. */
export function readPath(text: string): unknown[] | null {
  try {
    const path: unknown = JSON.parse(text);
    return Array.isArray(path) && path.length ? path : null;
  } catch {
    return null;
  }
}
