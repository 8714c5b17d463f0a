/**
 * JSON in and out without loss: `write(read(text))` is the same value for the server.
 *
 * JavaScript cannot tell 1.0 from 1, and sorts keys such as "10" in front of others. What `read` would lose is
 * noted next to the object or array that it returns, and `write` looks there. The notes follow an object that is
 * changed in place; for a copy of it, `write` takes the former value as `twin`. A number by itself has no notes.
 *
 * - An integer beyond 2^53 is a `bigint`.
 * - Bytes are a `Uint8Array`.
 * - Every other value without a JSON type stays an object with the member `@type`.
 */

import { InvalidError } from "./errors.js";

/** A number that is stored as a float although it has no fraction. */
export class Float {
  constructor(readonly value: number) {}
}

/** Facts of an object or array that its members do not show. */
interface Note {
  /** Numbers without a fraction that were floats, by key. */
  floats?: Map<string, number>;
  /** The keys in their order, where JavaScript sorts some of them. */
  order?: string[];
}

const notes = new WeakMap<object, Note>();
/** Text that `JSON.parse` would read with a loss, or that has tagged values. Hits in strings do no harm. */
const NEEDS_CARE = /"@type"|\d\.0(?!\d)|\d[eE]|"\d+"\s*:/;
const NUMBER = /-?\d+(\.\d+)?([eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\]|\\.)*"/sy;
const SPACE = /[ \n\r\t]*/y;
const INDEX = /^(?:0|[1-9]\d*)$/;

/** Read a JSON text of the server. */
export function read(text: string): unknown {
  return NEEDS_CARE.test(text) ? new Reader(text).whole() : JSON.parse(text);
}

/**
 * Write a value as JSON.
 *
 * A `Date` becomes a datetime, a `Map` a dict with any keys, and a `Set` a set. Members that are `undefined` are
 * left out.
 *
 * @param twin The former value, if this is a changed copy of it.
 * @throws InvalidError A part of it is a function, a symbol or itself.
 */
export function write(value: unknown, twin?: unknown): string {
  try {
    return textOf(value, twin, false, "");
  } catch (error) {
    if (error instanceof RangeError) {
      throw new InvalidError("the value contains itself, or nests too deep; give a tree of values");
    }
    throw error;
  }
}

/** Write a value that was read as a member of an object, where a float is noted. */
export function writeMember(value: unknown, former: object, key: string): string {
  const twin = (former as Record<string, unknown>)[key];
  return isNoted(notes.get(former), key, value) ? textOf(value, twin, true, "") : write(value, twin);
}

class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  whole(): unknown {
    const { value } = this.value();
    this.skip();
    if (this.at !== this.text.length) throw this.error();
    return value;
  }

  private value(): { value: unknown; isFloat: boolean } {
    this.skip();
    const first = this.text[this.at];
    if (first === "{") return { value: this.object(), isFloat: false };
    if (first === "[") return { value: this.array(), isFloat: false };
    if (first === '"') return { value: this.string(), isFloat: false };
    for (const [word, value] of [
      ["true", true],
      ["false", false],
      ["null", null],
    ] as const) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return { value, isFloat: false };
      }
    }
    const token = this.match(NUMBER);
    const value = Number(token);
    return { value, isFloat: /[.eE]/.test(token) && Number.isSafeInteger(value) };
  }

  private object(): unknown {
    const found: Record<string, unknown> = {};
    const note: Note = {};
    const order: string[] = [];
    this.at += 1;
    if (!this.ends("}")) {
      do {
        this.skip();
        const key = this.string();
        this.expect(":");
        const { value, isFloat } = this.value();
        // Not an assignment: that of `__proto__` would change the object's class.
        Object.defineProperty(found, key, { value, writable: true, enumerable: true, configurable: true });
        order.push(key);
        if (isFloat) (note.floats ??= new Map()).set(key, value as number);
      } while (this.continues("}"));
    }
    if (order.some((key) => INDEX.test(key))) note.order = order;
    if (note.floats !== undefined || note.order !== undefined) notes.set(found, note);
    return "@type" in found ? untagged(found) : found;
  }

  private array(): unknown[] {
    const found: unknown[] = [];
    const floats = new Map<string, number>();
    this.at += 1;
    if (!this.ends("]")) {
      do {
        const { value, isFloat } = this.value();
        if (isFloat) floats.set(String(found.length), value as number);
        found.push(value);
      } while (this.continues("]"));
    }
    if (floats.size > 0) notes.set(found, { floats });
    return found;
  }

  private string(): string {
    return JSON.parse(this.match(STRING)) as string;
  }

  private match(token: RegExp): string {
    token.lastIndex = this.at;
    const found = token.exec(this.text);
    if (found === null) throw this.error();
    this.at = token.lastIndex;
    return found[0];
  }

  private skip(): void {
    SPACE.lastIndex = this.at;
    SPACE.exec(this.text);
    this.at = SPACE.lastIndex;
  }

  private ends(sign: string): boolean {
    this.skip();
    if (this.text[this.at] !== sign) return false;
    this.at += 1;
    return true;
  }

  private continues(end: string): boolean {
    if (this.ends(end)) return false;
    this.expect(",");
    return true;
  }

  private expect(sign: string): void {
    if (!this.ends(sign)) throw this.error();
  }

  private error(): SyntaxError {
    return new SyntaxError(`the text is not JSON at character ${this.at}`);
  }
}

function untagged(form: Record<string, unknown>): unknown {
  const { value, base64 } = form;
  if (form["@type"] === "int" && typeof value === "string") {
    return value.startsWith("-") ? -BigInt(value.slice(1)) : BigInt(value);
  }
  if (form["@type"] === "float" && typeof value === "string") {
    return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? form;
  }
  if (form["@type"] === "bytes" && typeof base64 === "string") {
    return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  }
  return form;
}

function textOf(value: unknown, twin: unknown, isFloat: boolean, path: string): string {
  switch (typeof value) {
    case "string":
    case "boolean":
      return JSON.stringify(value);
    case "number":
      return numberText(value, isFloat);
    case "bigint":
      return bigintText(value);
    case "undefined":
      return "null";
    case "object":
      return value === null ? "null" : objectText(value, twin, path);
    default:
      throw new InvalidError(`${path || "the value"} is a ${typeof value}; give a value that can be stored`);
  }
}

function numberText(value: number, isFloat: boolean): string {
  if (Number.isNaN(value)) return '{"@type":"float","value":"nan"}';
  if (!Number.isFinite(value)) return `{"@type":"float","value":"${value < 0 ? "-" : ""}inf"}`;
  if (Object.is(value, -0)) return "-0.0";
  const text = String(value);
  const isWhole = !/[.e]/.test(text);
  // An integer that JavaScript cannot hold exactly came from a float: integers of this size are bigints.
  return isWhole && (isFloat || !Number.isSafeInteger(value)) ? `${text}.0` : text;
}

function bigintText(value: bigint): string {
  if (-(2n ** 63n) <= value && value < 2n ** 64n) {
    const isSafe = -(2n ** 53n) < value && value < 2n ** 53n;
    return isSafe ? String(value) : `{"@type":"int","value":"${value}"}`;
  }
  const digits = (value < 0n ? -value : value).toString(16);
  return `{"@type":"int","value":"${value < 0n ? "-" : ""}0x${digits}"}`;
}

function objectText(value: object, twin: unknown, path: string): string {
  if (value instanceof Float) return numberText(value.value, true);
  if (value instanceof Uint8Array) return `{"@type":"bytes","base64":"${base64Of(value)}"}`;
  if (value instanceof Date) return `{"@type":"datetime","value":"${value.toISOString()}"}`;
  if (value instanceof Map) return `{"@type":"map","items":${textOf([...value], undefined, false, path)}}`;
  if (value instanceof Set) return `{"@type":"set","items":${textOf([...value], undefined, false, path)}}`;
  const isArray = Array.isArray(value);
  const former =
    typeof twin === "object" && twin !== null && Array.isArray(twin) === isArray ? twin : undefined;
  const note = notes.get(value) ?? (former && notes.get(former));
  const member = (key: string): string => {
    const part = (value as Record<string, unknown>)[key];
    const before = (former as Record<string, unknown> | undefined)?.[key];
    return textOf(part, before, isNoted(note, key, part), isArray ? `${path}[${key}]` : `${path}.${key}`);
  };
  if (isArray) return `[${Array.from(value, (_, index) => member(String(index))).join()}]`;
  if ("toJSON" in value && typeof value.toJSON === "function") {
    return textOf(value.toJSON(), twin, false, path);
  }
  const keys = keysOf(value, note).filter((key) => (value as Record<string, unknown>)[key] !== undefined);
  return `{${keys.map((key) => `${JSON.stringify(key)}:${member(key)}`).join()}}`;
}

function isNoted(note: Note | undefined, key: string, value: unknown): boolean {
  return note?.floats !== undefined && note.floats.has(key) && Object.is(note.floats.get(key), value);
}

function keysOf(value: object, note: Note | undefined): string[] {
  const keys = Object.keys(value);
  if (note?.order === undefined) return keys;
  const first = note.order.filter((key) => Object.hasOwn(value, key));
  const known = new Set(first);
  return [...first, ...keys.filter((key) => !known.has(key))];
}

function base64Of(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}
