/** Streams: events, changes and conversations that are followed over broken connections. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import { InvalidError, UnauthenticatedError, type StoredEvent } from "@keepstate/client";
import { events } from "../dist/streams.js";
import { all, connect, network, newSpace, take, until } from "./support.js";

test("a stream that is cut anywhere goes on without a gap and without a repetition", async () => {
  let cuts = 0;
  const net = await network(() => (cuts < 8 ? { cutAfter: 137 + 211 * cuts++ } : undefined));
  const direct = newSpace();
  const { events: followed } = connect({}, net.url).space(direct.name);
  const numbers = Array.from({ length: 60 }, (_, index) => index);
  await direct.events.append(numbers.slice(0, 30));
  const writing = (async () => {
    for (const number of numbers.slice(30)) await direct.events.append([number]);
  })();

  const seen = await take(followed.follow<number>(), 60);

  assert.deepEqual(
    seen.map((event) => event.data),
    numbers,
  );
  assert.ok(net.seen.length > 4, `the stream was opened ${net.seen.length} times`);
  await writing;
  await net.close();
});

test("a reader that comes back with a position continues behind it", async () => {
  const { events } = newSpace();
  await events.append(["a", "b", "c"]);
  const [first] = await take(events.follow(), 1);

  const rest = await take(events.follow({ after: first?.position ?? "" }), 2);

  assert.deepEqual(
    rest.map((event) => event.data),
    ["b", "c"],
  );
  assert.deepEqual(
    (await all(events.read({ limit: 2, reverse: true }))).map((event) => event.data),
    ["c", "b", "a"],
  );
  assert.deepEqual(await events.streams(), ["main"]);
});

test("an event that is too large for a stream comes whole", async () => {
  const { events } = newSpace();
  const large = "x".repeat(300_000);
  await events.append([1, large, 2]);

  const seen: StoredEvent[] = await take(events.follow(), 3);

  assert.deepEqual(
    seen.map((event) => event.data),
    [1, large, 2],
  );
});

test("a watch tells of changes, also of those while it was cut off", async () => {
  const net = await network((name, count) =>
    name.endsWith("watch") && count < 4 ? { cutAfter: 150 } : undefined,
  );
  const { documents, name } = newSpace();
  const watching = take(connect({}, net.url).space(name).documents.watch<number>("a/*"), 3);
  await until(() => net.seen.length > 0);
  await wait(200);

  await documents.put("a/1", 1);
  await documents.put("b/1", 1);
  await documents.put("a/1", 2);
  await documents.delete("a/1");

  const changes = await watching;
  assert.deepEqual(
    changes.map(({ kind, old, new: now }) => [kind, old, now]),
    [
      ["created", null, 1],
      ["updated", 1, 2],
      ["deleted", 2, null],
    ],
  );
  await net.close();
});

test("a reader that leaves closes its connection", async () => {
  const net = await network();
  const { events } = newSpace(connect({}, net.url));
  await events.append([1]);

  await take(events.follow(), 1);
  await until(() => net.open === 0);

  const ending = new AbortController();
  const waiting = take(events.follow({ signal: ending.signal }), 2);
  await until(() => net.open === 1);
  ending.abort(new Error("enough"));
  await assert.rejects(waiting, { message: "enough" });
  await until(() => net.open === 0);
  await net.close();
});

test("an error that no repetition mends ends a stream", async () => {
  const { events } = newSpace();
  await assert.rejects(take(events.follow({ after: "nonsense" }), 1), InvalidError);
  const stranger = newSpace(connect({ key: "ks_wrong" }));
  await assert.rejects(take(stranger.events.follow(), 1), UnauthenticatedError);
});

test("server-sent events are read as the standard says, wherever the bytes are split", async () => {
  const text =
    ": hello\n\nid: 1\r\nevent: a\r\ndata: x\r\ndata:  ü\r\n\r\nretry: 70\n\ndata\n\nid: 2\ndata: last\n\ndata: unfinished";
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size < 9; size += 1) {
    const body = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const retries: number[] = [];
    const seen = await all(events(new Response(body), new AbortController(), (ms) => retries.push(ms)));

    const expected = [
      { id: "1", name: "a", data: "x\n ü" },
      { id: null, name: null, data: "" },
      { id: "2", name: null, data: "last" },
    ];
    assert.deepEqual([seen, retries], [expected, [70]], `in pieces of ${size}`);
  }
});
