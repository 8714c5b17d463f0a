/* JSON as text, so that editing keeps what a number of JavaScript would change: 1.0 stays a float. */

/** Return the text of a member of an object that is given as JSON; undefined if it has none. */
export function memberText(text: string, name: string): string | undefined {
  let at = text.indexOf("{") + 1;
  while (at > 0 && at < text.length) {
    const key = text.indexOf('"', at);
    if (key < 0) return undefined;
    const keyEnd = endOfString(text, key);
    const start = text.indexOf(":", keyEnd) + 1;
    const end = endOfValue(text, start);
    if (JSON.parse(text.slice(key, keyEnd)) === name) return text.slice(start, end).trim();
    at = end + 1;
  }
  return undefined;
}

/** Return JSON with a line for each member, and every literal as it was. */
export function pretty(text: string): string {
  let out = "";
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at]!;
    if (character === '"') {
      const end = endOfString(text, at);
      out += text.slice(at, end);
      at = end - 1;
    } else if (character === "{" || character === "[") {
      const next = text.slice(at + 1, at + 9).match(/^\s*[}\]]/);
      if (next) {
        out += character + next[0].trim();
        at += next[0].length;
      } else {
        depth += 1;
        out += character + line();
      }
    } else if (character === "}" || character === "]") {
      depth -= 1;
      out += line() + character;
    } else if (character === ",") out += "," + line();
    else if (character === ":") out += ": ";
    else if (!/\s/.test(character)) out += character;
  }
  return out;
}

function endOfString(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
  return at + 1;
}

function endOfValue(text: string, start: number): number {
  let depth = 0;
  for (let at = start; at < text.length; at += 1) {
    const character = text[at]!;
    if (character === '"') at = endOfString(text, at) - 1;
    else if (character === "{" || character === "[") depth += 1;
    else if (character === "}" || character === "]") {
      if (depth === 0) return at;
      depth -= 1;
    } else if (character === "," && depth === 0) return at;
  }
  return text.length;
}
