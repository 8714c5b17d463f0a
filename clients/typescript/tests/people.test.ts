/** Conversations, approvals, histories and listings of all spaces. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import { ApprovalClosedError, NotFoundError, UnavailableError } from "@keepstate/client";
import { all, connect, network, newSpace, take } from "./support.js";

test("a conversation is appended to once by id, read in pages and followed", async () => {
  const net = await network((name, count) =>
    name === "POST /v1/conversation" && count === 1 ? "lose" : undefined,
  );
  const talk = connect({}, net.url).conversation(randomUUID());

  assert.equal(await talk.append({ role: "user", content: "Hello" }, { id: "q/1", meta: { n: 1.5 } }), 0);
  assert.equal(await talk.append({ role: "assistant", content: "Yes?" }), 1);
  assert.equal(await talk.append({ role: "user", content: "Hello" }, { id: "q/1" }), 0);

  const page = await talk.page({ limit: 1 });
  assert.deepEqual(
    page.items.map((entry) => [entry.number, entry.message]),
    [[1, { role: "assistant", content: "Yes?" }]],
  );
  const before = await talk.page({ before: page.previous ?? "" });
  assert.deepEqual(
    before.items.map((entry) => [entry.id, entry.meta]),
    [["q/1", { n: 1.5 }]],
  );
  const changes = await take(talk.follow(), 2);
  assert.deepEqual(
    changes.map((change) => [change.kind, change.number]),
    [
      ["message", 0],
      ["message", 1],
    ],
  );
  assert.equal(await talk.stop(), false);
  await net.close();
});

test("an approval is answered once, by the person for whom the client writes", async () => {
  const { approvals, name } = newSpace();
  const asked = await approvals.ask("Publish?", { id: "go", subject: { page: 1 }, to: [] });
  const ann = connect({ on_behalf_of: "ann" }).space(name).approvals;

  assert.deepEqual(
    (await all(approvals.pending())).map((each) => each.id),
    ["go"],
  );
  const answered = await ann.answer(asked, true, { note: "fine" });

  assert.deepEqual(
    [answered.state, answered.is_approved, answered.closed_by?.endsWith("/ann")],
    ["answered", true, true],
  );
  assert.equal((await ann.answer(asked, true, { note: "fine" })).state, "answered");
  await assert.rejects(
    approvals.answer(asked, false),
    (error) => error instanceof ApprovalClosedError || /may not/.test(String(error)),
  );
  assert.deepEqual(
    (await approvals.log("go")).map((line) => line.kind),
    ["asked", "answered"],
  );
  assert.deepEqual(await all(approvals.pending()), []);
  await approvals.withdraw((await approvals.ask("And this?")).id, { reason: "no longer" });
  await assert.rejects(approvals.get("absent"), NotFoundError);
});

test("a history answers with every past state", async () => {
  const { history } = connect().space("recorded"); // a program in Python has recorded three commits
  const commits = await all(history.log({ limit: 2 }));
  const [newest, , oldest] = commits;

  assert.deepEqual(
    commits.map((commit) => commit.number),
    [3, 2, 1],
  );
  assert.equal((await history.commit("main~1")).number, 2);
  for (const ref of ["main#1", oldest?.id ?? ""]) {
    assert.equal((await history.state(ref, ["plan", "step"])).value, 0);
  }
  const { items } = await history.diff(oldest?.id ?? "", newest?.id ?? "", { path: ["plan"] });
  assert.deepEqual(
    items.map(({ path, old, new: now }) => [path, old, now]),
    [[["plan", "step"], 0, 2]],
  );
  assert.equal((await history.blame(["plan", "step"])).commit.number, 3);
  assert.deepEqual(
    (await history.changes(["plan", "step"], "main", { limit: 2 })).map((change) => change.commit.number),
    [3, 2],
  );
  assert.deepEqual((await history.slice("main", ["plan", "tags"], { start: 1, limit: 1 })).items, ["b"]);
  assert.deepEqual(
    (await history.references()).branches.map((branch) => branch.name),
    ["main"],
  );
});

test("spaces and subjects are listed", async () => {
  const ks = connect();
  const { queue, name } = newSpace(ks);
  await queue.put(1, { id: "t" });

  const spaces = await all(ks.spaces({ under: name }));
  const found = await all(ks.find({ under: name }));

  assert.deepEqual(
    spaces.map((space) => space.name),
    [name],
  );
  assert.deepEqual(
    found.map((subject) => [subject.space, subject.kind]),
    [[name, "queue"]],
  );
});

test("a reply is read while it is written, by a reader that is cut off too", async () => {
  const net = await network((name, count) =>
    name.endsWith("follow") && count < 4
      ? { cutAfter: 400 }
      : name.endsWith("extend") && count % 3 === 0
        ? "lose"
        : undefined,
  );
  const ks = connect({}, net.url);
  const talk = ks.conversation(randomUUID());
  await talk.append({ role: "user", content: "Count" });
  let shown = "";
  const reading = (async () => {
    for await (const change of talk.follow()) {
      if (change.kind === "started") shown = change.text;
      if (change.kind === "delta") shown += change.text;
      if (change.kind === "message" && change.id === "r") return change.entry;
    }
    return undefined;
  })();

  const ended = await talk.reply(
    async (reply) => {
      for (let number = 0; number < 12; number += 1) {
        reply.write(`${number} `);
        await wait(25);
      }
      assert.equal(reply.id, "r");
    },
    { id: "r", flush_s: 0.05, meta: { model: "m" } },
  );

  const entry = await reading;
  assert.equal(ended, "done");
  assert.deepEqual(entry?.message, { role: "assistant", content: "0 1 2 3 4 5 6 7 8 9 10 11 " });
  assert.deepEqual(entry?.meta, { model: "m" });
  assert.equal("0 1 2 3 4 5 6 7 8 9 10 11 ".startsWith(shown), true);
  await net.close();
});

test("a reply is stopped by anybody, kept as failed if its writer throws, and lost if the writer is away", async () => {
  const talk = connect().conversation(randomUUID());
  const stopped = await talk.reply(
    async (reply) => {
      reply.write("for ever");
      await wait(80);
      assert.equal(await talk.stop(), true);
      await wait(20_000, undefined, { signal: reply.signal }).catch(() => {});
      assert.equal(reply.stopped, true);
      reply.write("more");
    },
    { flush_s: 0.02, lease_s: 0.6 },
  );
  assert.equal(stopped, "stopped");

  const failing = talk.reply((reply) => {
    reply.write("half a sen");
    throw new Error("the model is gone");
  });
  await assert.rejects(failing, { message: "the model is gone" });
  assert.deepEqual(
    (await talk.page()).items.map((entry) => entry.status),
    ["stopped", "failed"],
  );

  let isAway = false;
  const net = await network(() => (isAway ? { status: 503 } : undefined));
  const away = connect({ retry_s: 0 }, net.url).conversation(talk.session);
  const lost = away.reply(
    async (reply) => {
      isAway = true;
      await wait(5_000, undefined, { signal: reply.signal }).catch(() => {});
      isAway = false;
      await wait(400);
      reply.write("too late");
    },
    { lease_s: 0.3 },
  );
  await assert.rejects(lost, UnavailableError);
  await net.close();
});
