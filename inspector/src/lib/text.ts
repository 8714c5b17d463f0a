/* Text of strangers as people may read it: control, bidirectional and invisible characters are escapes. */

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|[\ud800-\udfff]/gu;

function escape(character: string): string {
  return `\\u{${character.codePointAt(0)!.toString(16)}}`;
}

/** Return text with hidden characters as escapes, cut to a number of characters. */
export function visible(text: string, limit = 300): string {
  const isLong = text.length > limit;
  const cut = isLong ? text.slice(0, limit) : text;
  return cut.replace(HIDDEN, escape) + (isLong ? "…" : "");
}

/** As `visible`, on one line. */
export function inline(text: string, limit = 300): string {
  const isLong = text.length > limit;
  return visible(isLong ? text.slice(0, limit) : text, limit).replace(/[\n\t]+/g, " ") + (isLong ? "…" : "");
}

/** Return a value as short text: a string without quotes, everything else as JSON. */
export function short(value: unknown, limit = 300): string {
  return inline(typeof value === "string" ? value.slice(0, limit + 1) : json(value), limit);
}

/** Return a value as JSON. */
export function json(value: unknown, indent?: number): string {
  return JSON.stringify(value, null, indent) ?? "";
}

/** Return "1 task" or "2 tasks". */
export function plural(count: number, noun: string, many = `${noun}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : many}`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a size with its unit. */
export function size(bytes: number): string {
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) [bytes, unit] = [bytes / 1024, unit + 1];
  return `${bytes.toLocaleString("en", { maximumFractionDigits: unit && bytes < 100 ? 1 : 0 })} ${UNITS[unit]}`;
}

/** Return seconds as a duration, such as "2 min 5 s". */
export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const parts: [number, string][] = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3_600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.round(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}
