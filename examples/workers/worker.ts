/**
 * A worker in TypeScript that charges orders: large ones if a person says yes, each one at most once.
 *
 *     KEEPSTATE_URL=http://127.0.0.1:8484 KEEPSTATE_KEY=ks_… node worker.ts SPACE
 *
 * Node 22.18 or newer runs TypeScript as it is. A killed worker loses nothing: another one goes on behind the last
 * recorded step. With IDLE_S, it ends after so many seconds without a task.
 */

import { Keepstate, type Task } from "@keepstate/client";

interface Order {
  amount: number;
  items: string[];
}

async function charge(order: Order): Promise<{ receipt: string }> {
  return { receipt: `receipt of ${order.amount}` }; // here the bank is called
}

async function work(task: Task<Order>): Promise<object> {
  let order = task.payload;
  if (order.amount > 100) {
    // Without an answer, this attempt ends here, and the task waits without a worker.
    const answer = await task.ask("approve", `Charge ${order.amount}?`, {
      subject: order,
      expires_s: 86_400,
    });
    if (!answer.approved) return { state: "refused", by: answer.by };
    order = answer.subject as Order; // what the person saw
  }
  const paid = await task.step("charge", () => charge(order), { once: true });
  await task.transact("ship", [
    { do: "append", events: [{ items: order.items, ...paid }], stream: "shipments" },
    { do: "put", key: `order/${task.id}`, value: { state: "shipped", ...paid } },
  ]);
  return { state: "shipped", ...paid };
}

const { KEEPSTATE_URL = "http://127.0.0.1:8484", KEEPSTATE_KEY = "", IDLE_S } = process.env;
const { queue } = new Keepstate(KEEPSTATE_URL, { key: KEEPSTATE_KEY }).space(process.argv[2] ?? "orders");
const report = await queue.run(work, {
  concurrency: 5,
  worker: `orders-${process.pid}`,
  ...(IDLE_S !== undefined && { idle_s: Number(IDLE_S) }),
});
console.log(JSON.stringify(report));
