/** Reads lines `SPACE` from its input, copies the document `value` of each in all ways, and prints a line. */

import { createInterface } from "node:readline";

import { connect } from "./support.js";

/** Return a copy of a value whose objects and arrays are all new. */
function copied(value: unknown): unknown {
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return value.map(copied);
  const copy: Record<string, unknown> = {};
  for (const [key, part] of Object.entries(value)) {
    Object.defineProperty(copy, key, {
      value: copied(part),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return copy;
}

const ks = connect();
for await (const name of createInterface({ input: process.stdin })) {
  const { documents, events, queue } = ks.space(name);
  const value = await documents.get("value");
  await documents.put("put", value);
  await documents.update("value", (present) => present);
  await documents.update("value", copied);
  await events.append([value]);
  await queue.put(value, { id: "task" });
  console.log("done");
}
