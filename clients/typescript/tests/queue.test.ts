/** Tasks and workers: ends of tasks, leases, stops, and a server that is away. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import {
  Float,
  InvalidError,
  LeaseLostError,
  NotFoundError,
  Suspended,
  TaskCancelledError,
  TaskFailedError,
  UnauthenticatedError,
  type Task,
} from "@keepstate/client";
import { all, connect, network, newSpace, until } from "./support.js";

/** A worker ends by itself after this time without a task. */
const QUIET = { idle_s: 0.2, handle_signals: false, retry_in_s: () => 0 };

describe("tasks and workers", { concurrency: 6 }, () => {
  test("a worker completes tasks with the results of its handlers, by kind", async () => {
    const { queue } = newSpace();
    await queue.put({ a: 1 }, { id: "t/1", kind: "double" });
    await queue.put({ a: 2 }, { id: "t/2", kind: "double" });
    await queue.put(7, { id: "other", kind: "square" });

    const report = await queue.run(
      { double: (task: Task<{ a: number }>) => task.payload.a * 2 },
      { ...QUIET, worker: "w" },
    );

    assert.deepEqual(report, { ended: "idle", completed: 2, failed: 0, waiting: 0, released: 0, lost: 0 });
    assert.deepEqual([await queue.result("t/1"), await queue.result("t/2", { wait_s: 1 })], [2, 4]);
    assert.deepEqual(await queue.counts(), {
      ready: 1,
      waiting: 0,
      claimed: 0,
      done: 2,
      dead: 0,
      cancelled: 0,
    });
    assert.equal((await queue.attempts("t/1"))[0]?.worker?.endsWith("/w"), true);
    assert.deepEqual((await all(queue.list({ state: "done", limit: 1 }))).map((task) => task.id).sort(), [
      "t/1",
      "t/2",
    ]);
    assert.equal(await queue.remove("t/1"), true);
  });

  test("a handler that throws fails its task, until it is dead", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t", max_attempts: 3 });
    await queue.put(1, { id: "final" });
    const attempts: string[] = [];

    const report = await queue.run(
      (task) => {
        attempts.push(`${task.id} ${task.attempt}`);
        throw new RangeError("no way");
      },
      { ...QUIET, concurrency: 1, retry_in_s: (_, task) => (task.id === "final" ? false : 0) },
    );

    assert.deepEqual([report.failed, attempts.sort()], [4, ["final 1", "t 1", "t 2", "t 3"]]);
    assert.match((await queue.get("t")).error ?? "", /^RangeError: no way/);
    await assert.rejects(queue.result("t"), TaskFailedError);
    assert.equal(await queue.requeue(["t"]), 1);
    await assert.rejects(queue.result("t"), NotFoundError);
  });

  test("a lease is renewed while a handler runs, and its progress is shown", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t" });

    const report = await queue.run(
      async (task) => {
        await task.heartbeat({ done: 0.5 });
        await wait(6000);
        return (await queue.get(task.id)).progress;
      },
      { ...QUIET, lease_s: 4 },
    );

    assert.equal(report.completed, 1);
    assert.deepEqual(await queue.result("t"), { done: 0.5 });
    assert.equal((await queue.get("t")).attempt, 1);
  });

  test("a cancelled task aborts the signal of its handler", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t" });
    let reason: unknown;

    const report = await queue.run(
      async (task) => {
        await queue.cancel(task.id, { reason: "not needed" });
        await wait(5000, undefined, { signal: task.signal }).catch(() => (reason = task.signal.reason));
      },
      { ...QUIET, lease_s: 0.6 },
    );

    assert.equal(report.lost, 1);
    assert.ok(reason instanceof LeaseLostError);
    await assert.rejects(queue.result("t"), TaskCancelledError);
  });

  test("an attempt that cannot renew its lease is aborted before another worker may have the task", async () => {
    let isAway = false;
    const net = await network(() => (isAway ? "refuse" : undefined));
    const { queue, name } = newSpace();
    await queue.put(1, { id: "t" });
    let tookOver: Task | undefined;
    let wasAborted = false;

    const worker = connect({ retry_s: 0.1 }, net.url)
      .space(name)
      .queue.run(
        async (task) => {
          isAway = true;
          await wait(20_000, undefined, { signal: task.signal }).catch(() => {});
          wasAborted = task.signal.aborted;
          [tookOver] = await queue.claim({ lease_s: 60, wait_s: 5 });
          isAway = false;
          await task.complete("too late");
        },
        { ...QUIET, lease_s: 0.5, onError: () => {} },
      );
    const report = await worker;

    await until(() => tookOver !== undefined); // the worker does not wait for an aborted handler
    assert.equal(wasAborted, true);
    assert.equal(tookOver?.attempt, 2);
    assert.equal(report.lost, 1);
    await tookOver?.complete("in time");
    assert.equal(await queue.result("t"), "in time");
    await net.close();
  });

  test("a worker that is asked to stop claims nothing more, and returns what does not end", async () => {
    const { queue } = newSpace();
    for (const id of ["fast", "slow"]) await queue.put(1, { id, kind: id });
    const stop = new AbortController();
    let running = 0;

    const report = await queue.run(
      {
        fast: async () => {
          running += 1;
          await until(() => running === 2);
          stop.abort();
          await wait(100);
          await queue.put(1, { id: "late", kind: "fast" });
        },
        slow: async (task) => {
          running += 1;
          await wait(20_000, undefined, { signal: task.signal });
        },
      },
      { handle_signals: false, signal: stop.signal, drain_s: 0.5 },
    );

    // The claim that was under way has got the late task, and returned it.
    assert.deepEqual(report, { ended: "stopped", completed: 1, failed: 0, waiting: 0, released: 2, lost: 0 });
    for (const id of ["slow", "late"]) {
      const task = await queue.get(id);
      assert.deepEqual([task.state, task.attempt], ["ready", 0]);
    }
  });

  test("an attempt that takes too long fails", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t", max_attempts: 1 });

    const report = await queue.run((task) => wait(20_000, undefined, { signal: task.signal }), {
      ...QUIET,
      timeout_s: 0.2,
    });

    assert.equal(report.failed, 1);
    assert.match((await queue.get("t")).error ?? "", /did not end in 0.2 s/);
  });

  test("a result that cannot be stored makes a task dead, and says why", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t" });

    const report = await queue.run(() => ({ call: () => 1 }), QUIET);

    assert.equal(report.failed, 1);
    const { state, error } = await queue.get("t");
    assert.equal(state, "dead");
    assert.match(error ?? "", /the result of the handler cannot be stored: .result.call is a function/);
  });

  test("a task is put once, and a message reaches it once, though replies are lost", async () => {
    const net = await network((_, count) => (count % 2 === 1 ? "lose" : undefined));
    const direct = newSpace();
    const { queue } = connect({}, net.url).space(direct.name);

    const put = await queue.put(1, { kind: "x" });
    await queue.send(put.id, "go", { now: true });

    assert.equal(put.added, true);
    assert.equal((await direct.queue.counts())["ready"], 1);
    const [task] = await direct.queue.claim({ lease_s: 5 });
    await task?.fail("later", { retry_in_s: 0 });
    await assert.rejects(task?.complete() ?? Promise.resolve(), LeaseLostError);
    await net.close();
  });

  test("a worker waits for a server that is away, and ends with a key that is wrong", async () => {
    let isAway = true;
    const net = await network(() => (isAway ? { status: 503 } : undefined));
    const { queue, name } = newSpace();
    await queue.put(1, { id: "t" });
    const errors: unknown[] = [];
    const onError = (error: unknown): void => {
      errors.push(error);
      isAway = false;
    };

    const report = await connect({ retry_s: 0 }, net.url)
      .space(name)
      .queue.run(() => 1, { ...QUIET, onError });

    assert.deepEqual([report.completed, errors.length], [1, 1]);
    await assert.rejects(
      newSpace(connect({ key: "ks_wrong" })).queue.run(() => 1, QUIET),
      UnauthenticatedError,
    );
    await assert.rejects(queue.run({}, QUIET), InvalidError);
    await assert.rejects(
      queue.run(() => 1, { ...QUIET, concurrency: 0 }),
      InvalidError,
    );
    await net.close();
  });

  test("a step that is recorded is not run again, and its name is used once in an attempt", async () => {
    const { queue, documents } = newSpace();
    await queue.put([1, 2], { id: "t" });
    const ran: string[] = [];

    const report = await queue.run(async (task: Task<number[]>) => {
      const sums = await Promise.all(
        task.payload.map((number) =>
          task.step(`part/${number}`, () => {
            ran.push(`part/${number}`);
            return { sum: number * 10, ratio: new Float(1) };
          }),
        ),
      );
      await task.transact("count", [{ do: "put", key: `count/${ran.length}`, value: sums.length }]);
      await assert.rejects(
        task.step("count", () => 1),
        InvalidError,
      );
      if (task.attempt === 1) throw new Error("the worker fails here");
      return sums.map((each) => each.sum);
    }, QUIET);

    assert.deepEqual([report.completed, report.failed, ran.sort()], [1, 1, ["part/1", "part/2"]]);
    assert.deepEqual(await queue.result("t"), [10, 20]);
    assert.deepEqual(
      (await all(documents.list({ values: false }))).map((each) => each.key),
      ["count/2"],
    );
    assert.deepEqual((await queue.steps("t")).map((step) => [step.name, step.kind]).at(-1), [
      "count",
      "transact",
    ]);
    await queue.rerun("t", { from_step: "part/1", as_id: "again" });
    await queue.run((task) => task.step("part/1", () => "anew"), QUIET);
    assert.equal(await queue.result("again"), "anew");
  });

  test("a step with once whose end is unknown waits for a person", async () => {
    const { queue } = newSpace();
    await queue.put(5, { id: "t", max_attempts: 2 });
    const pay = (task: Task): Promise<unknown> =>
      task.step("pay", () => Promise.reject(new Error("no answer from the bank")), { once: true });

    await queue.run(pay, QUIET);
    assert.match((await queue.get("t")).error ?? "", /StepUnknownError/);
    await queue.settle("t", "pay", { result: { paid: 5 } });
    await queue.requeue(["t"]);
    await queue.run(pay, QUIET);

    assert.deepEqual(await queue.result("t"), { paid: 5 });
  });

  test("a task that waits for a message, a task, a person and a time holds no worker", async () => {
    const { queue, approvals } = newSpace();
    await queue.put("Ann", { id: "trip" });
    const trip = async (task: Task): Promise<unknown> => {
      if (task.kind === "part") return `${String(task.payload)} is booked`;
      const ids = [
        await task.spawn("flight", "flight", { kind: "part" }),
        await task.spawn("hotel", "hotel", { kind: "part" }),
      ];
      const booked = await task.results<string>(ids);
      const message = await task.receive<string>("confirmed");
      const answer = await task.ask("go", "Go?", { subject: { booked }, expires_s: 600 });
      const none = await task.receive("never", { timeout_s: 0.01 });
      await task.sleep("a moment", 0.05);
      await task.sleep("until then", new Date(0));
      return { booked, message, approved: answer.approved, subject: answer.subject, none };
    };

    const first = await queue.run(trip, QUIET);
    assert.deepEqual([first.completed, first.waiting, (await queue.get("trip")).state], [2, 2, "waiting"]);
    await queue.send("trip", "confirmed", "yes");
    await queue.run(trip, QUIET);
    const asked = await approvals.get("trip/go");
    const ann = connect({ on_behalf_of: "ann" }).space(queue.space).approvals;
    await ann.answer(asked, true);
    await queue.run(trip, QUIET);

    const booked = ["flight is booked", "hotel is booked"];
    assert.deepEqual(await queue.result("trip"), {
      booked,
      message: "yes",
      approved: true,
      subject: { booked },
    });
    assert.equal((await queue.get("trip")).attempt, 1);
  });

  test("a handler that catches its suspension is told of, and completes nothing", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t" });
    const told: string[] = [];

    const report = await queue.run(
      async (task) => {
        await task.receive("go").catch(() => {});
        await assert.rejects(
          task.step("more", () => 1),
          Suspended,
        );
        return "done";
      },
      { ...QUIET, onError: (error) => told.push(String(error)) },
    );

    assert.deepEqual([report.waiting, report.completed, told.length], [1, 0, 1]);
    assert.match(told[0] ?? "", /caught Suspended/);
    assert.equal((await queue.get("t")).state, "waiting");
  });

  test("a handler returns its task for later, without using an attempt", async () => {
    const { queue } = newSpace();
    await queue.put(1, { id: "t" });

    const report = await queue.run((task) => task.later(60), QUIET);

    assert.equal(report.released, 1);
    const { state, attempt } = await queue.get("t");
    assert.deepEqual([state, attempt], ["waiting", 0]);
  });

  test("steps and ends whose replies are lost are recorded once", async () => {
    const net = await network((name, count) =>
      name.startsWith("POST /v1/task/") && count % 2 === 0 ? "lose" : undefined,
    );
    const { queue, name } = newSpace();
    await queue.put(1, { id: "t" });
    let ran = 0;

    const report = await connect({}, net.url)
      .space(name)
      .queue.run(async (task) => {
        for (const step of ["a", "b", "c"]) await task.step(step, () => (ran += 1), { once: step === "b" });
        await task.transact("count", [{ do: "append", events: [1] }]);
        return ran;
      }, QUIET);

    assert.deepEqual([report.completed, ran, await queue.result("t")], [1, 3, 3]);
    assert.equal((await newSpace().events.page()).items.length, 0);
    assert.equal((await connect().space(name).events.page()).items.length, 1);
    await net.close();
  });
});
