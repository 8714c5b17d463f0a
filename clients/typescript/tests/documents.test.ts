/** Documents, errors, and what becomes of requests on a network that loses them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Float,
  InvalidError,
  Keepstate,
  NotAllowedError,
  NotFoundError,
  OutcomeUnknownError,
  PreconditionFailedError,
  read,
  UnauthenticatedError,
  UnavailableError,
  write,
} from "@keepstate/client";
import { all, connect, deadUrl, KEY, network, newSpace, URL_OF_SERVER } from "./support.js";

test("a document is written, read, changed, listed and deleted", async () => {
  const { documents } = newSpace();

  const version = await documents.put("plan/ä?&#%", { step: 1, tags: ["a"] });
  assert.equal((await documents.entry("plan/ä?&#%"))?.version, version);
  await documents.patch("plan/ä?&#%", { step: 2, tags: null });
  for (let number = 0; number < 5; number += 1) await documents.put(`row/${number}`, number);

  assert.deepEqual(await documents.get("plan/ä?&#%"), { step: 2 });
  assert.equal(await documents.get("absent"), undefined);
  const rows = await all(documents.list({ prefix: "row/", limit: 2 }));
  assert.deepEqual(
    rows.map((row) => [row.key, row.value]),
    [0, 1, 2, 3, 4].map((number) => [`row/${number}`, number]),
  );
  assert.deepEqual([await documents.delete("row/0"), await documents.delete("row/0")], [true, false]);
});

test("a write under a condition fails if the document is in another version", async () => {
  const { documents } = newSpace();
  const first = await documents.put("k", 1, { if_version: "" });
  const second = await documents.put("k", 2, { if_version: first ?? "" });

  await assert.rejects(documents.put("k", 3, { if_version: first ?? "" }), PreconditionFailedError);
  await assert.rejects(documents.put("k", 3, { if_version: "" }), PreconditionFailedError);
  await assert.rejects(documents.delete("k", { if_version: first ?? "" }), PreconditionFailedError);
  await documents.delete("k", { if_version: second ?? "" });
});

test("updates of many writers lose nothing", async () => {
  const { documents } = newSpace();
  const writers = Array.from({ length: 12 }, () =>
    documents.update<number>("n", (n) => n + 1, { default: 0 }),
  );

  const seen = await Promise.all(writers);

  assert.deepEqual(
    seen.sort((a, b) => a - b),
    writers.map((_, index) => index + 1),
  );
  await assert.rejects(
    documents.update("absent", (value) => value),
    NotFoundError,
  );
  await assert.rejects(
    documents.update("n", () => undefined as unknown),
    InvalidError,
  );
});

test("an update whose replies are lost is applied once", async () => {
  const net = await network((name, count) =>
    name === "POST /v1/batch" && count % 3 !== 0 ? "lose" : undefined,
  );
  const { documents } = newSpace(connect({}, net.url));

  for (let number = 1; number <= 6; number += 1)
    await documents.update<number>("n", (n) => n + 1, { default: 0 });

  assert.equal(await documents.get("n"), 6);
  assert.ok(net.seen.filter((name) => name === "POST /v1/batch").length > 6);
  await net.close();
});

test("a write without a key whose reply is lost is not repeated, and says that its outcome is unknown", async () => {
  const net = await network((name) => (name.startsWith("PUT") ? "lose" : undefined));
  const { documents } = newSpace(connect({}, net.url));

  await assert.rejects(documents.put("k", 1), (error) => {
    return error instanceof OutcomeUnknownError && error.code === "outcome_unknown" && !error.retryable;
  });

  assert.equal(await documents.get("k"), 1);
  assert.equal(net.seen.filter((name) => name.startsWith("PUT")).length, 1);
  await net.close();
});

test("reads are repeated over broken connections and busy proxies", async () => {
  const faults = [
    "refuse",
    "lose",
    { status: 502 },
    { status: 429, headers: { "retry-after": "1" } },
  ] as const;
  const net = await network((_, count) => faults[count - 1]);
  const seen: string[] = [];
  const { documents } = newSpace(connect({ onRetry: (error) => seen.push(error.code) }, net.url));
  const began = performance.now();

  assert.equal(await documents.get("k"), undefined);

  assert.deepEqual(seen, ["unavailable", "unavailable", "http_502", "http_429"]);
  assert.ok(performance.now() - began >= 1000, "the Retry-After was not obeyed");
  await net.close();
});

test("a write is repeated only after answers that say that nothing was done", async () => {
  const net = await network((_, count) =>
    count === 1 ? { status: 429 } : count === 2 ? { status: 502 } : undefined,
  );
  const { documents } = newSpace(connect({}, net.url));

  await assert.rejects(
    documents.put("k", 1),
    (error) => error instanceof UnavailableError && error.code === "http_502",
  );

  assert.equal(net.seen.length, 2);
  await net.close();
});

test("a server that is away is an error after some time, and a signal ends the waiting", async () => {
  const url = await deadUrl();
  const away = connect({ retry_s: 0.3 }, url);
  await assert.rejects(
    away.space("s").documents.put("k", 1),
    (error) => error instanceof UnavailableError && error.retryable,
  );

  const patient = connect({}, url);
  const reason = new Error("enough");
  const waiting = patient.space("s").documents.get("k", { signal: AbortSignal.timeout(100) });
  await assert.rejects(waiting, { name: "TimeoutError" });
  await assert.rejects(patient.space("s").documents.get("k", { signal: AbortSignal.abort(reason) }), reason);
});

test("a request that gets no answer is given up", async () => {
  const net = await network(() => undefined);
  const slow = connect({ timeout_s: 0.2, retry_s: 0 }, net.url);

  await assert.rejects(
    slow.request("get", "/v1/task/result", { query: { space: "node", id: "none", wait_s: 5 } }),
    (error) => {
      return error instanceof UnavailableError || error instanceof NotFoundError;
    },
  );
  const { queue } = newSpace(slow);
  await assert.rejects(queue.claim({ lease_s: 5, wait_s: 5 }), UnavailableError);
  await net.close();
});

test("an error has the class of its code", async () => {
  const { documents, queue, history } = newSpace();
  await queue.put(1, { id: "t", if_present: "raise" });

  await assert.rejects(
    new Keepstate(URL_OF_SERVER, { key: "ks_wrong" }).space("s").documents.get("k"),
    UnauthenticatedError,
  );
  await assert.rejects(new Keepstate(URL_OF_SERVER).space("s").documents.get("k"), UnauthenticatedError);
  await assert.rejects(documents.put("k", 1, { ttl_s: -1 }), InvalidError);
  await assert.rejects(
    documents.put("k", () => 1),
    InvalidError,
  );
  await assert.rejects(queue.get("absent"), NotFoundError);
  await assert.rejects(history.commit(), NotFoundError);
  await assert.rejects(queue.put(1, { id: "t", if_present: "raise" }), {
    code: "already_exists",
    status: 409,
  });
  await assert.rejects(
    connect().request("get", "/v1/tenants", {}),
    (error) => error instanceof NotAllowedError,
  );
});

test("a batch applies whole or not at all", async () => {
  const space = newSpace();
  await space.documents.put("a", 1);
  const wrong = space.batch([
    { do: "put", key: "b", value: 1 },
    { do: "put", key: "a", value: 2, if_version: "" },
  ]);
  await assert.rejects(wrong, PreconditionFailedError);
  assert.equal(await space.documents.get("b"), undefined);

  const lease = await space.acquire("lock", { ttl_s: 60 });
  const applied = await space.batch(
    [
      { do: "append", events: [1, 2] },
      { do: "delete", key: "a" },
      { do: "put_task", payload: 1, id: "t" },
    ],
    { lease: await space.renew(lease) },
  );
  assert.deepEqual(
    applied.results.map((each) => each.id ?? each.existed),
    [null, true, "t"],
  );
  assert.equal(await space.release(lease), true);
  await assert.rejects(space.batch([{ do: "put", key: "a", value: 1 }], { lease }), { code: "lease_lost" });
});

test("the author is the person for whom the client writes", async () => {
  const ann = connect({ on_behalf_of: "Änn & co" });
  const space = newSpace(ann);
  await space.events.append([1]);

  const { items } = await space.events.page();

  assert.equal(items[0]?.author, `${process.env["KEEPSTATE_KEY_NAME"]}/Änn & co`);
});

test("numbers, bytes and order survive in place and in copies", () => {
  const text =
    '{"b":1.0,"10":[1,2.0,-0.0],"2":{"@type":"int","value":"-0x1ffffffffffffffffffff"},"__proto__":{"x":3.0},"c":1e22}';
  const value = read(text) as Record<string, unknown>;

  assert.equal(write(value), text.replace("1e22", "1e+22"));
  assert.equal(write({ ...value }, value), write(value));
  assert.equal(Object.getPrototypeOf(value), Object.prototype);
  assert.equal(write({ ...value, b: 2 }, value).slice(0, 12), '{"b":2,"10":');
  assert.equal(
    write([new Float(1), 2 ** 60, -(2n ** 60n), 5n, NaN, undefined]),
    '[1.0,1152921504606847000.0,{"@type":"int","value":"-1152921504606846976"},5,{"@type":"float","value":"nan"},null]',
  );
  assert.equal(
    write({ a: undefined, b: new Date(0) }),
    '{"b":{"@type":"datetime","value":"1970-01-01T00:00:00.000Z"}}',
  );
  const loop: unknown[] = [];
  loop.push(loop);
  assert.throws(() => write(loop), InvalidError);
  for (const wrong of ['{"a":1.0', "[1.0,]", "1.0 2", '{"a" 1.0}', '{"@type":nul}'])
    assert.throws(() => read(wrong), SyntaxError);
});

test("a client needs a name of a space, and keeps a path of its address", () => {
  assert.throws(() => connect().space(""), InvalidError);
  assert.throws(() => new Keepstate("no address", { key: KEY }), TypeError);
});
