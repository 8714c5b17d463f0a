/**
 * A worker that notes in FILE what each step has returned: `SPACE FILE`.
 *
 * The result of a step is random, so a step that was done twice gives itself away.
 */

import { randomUUID } from "node:crypto";
import { appendFileSync } from "node:fs";
import { setTimeout as wait } from "node:timers/promises";

import { connect } from "./support.js";

const [space = "", file = ""] = process.argv.slice(2);

const report = await connect({ retry_s: 60 })
  .space(space)
  .queue.run(
    async (task) => {
      const found: unknown[] = [];
      for (const name of ["first", "once", "last"]) {
        const result = await task.step(name, async () => {
          await wait(10 + Math.random() * 20);
          return randomUUID();
        });
        appendFileSync(file, `${JSON.stringify([task.id, name, result])}\n`);
        found.push(result);
      }
      await task.transact("count", [
        { do: "append", events: [task.id], stream: "counted" },
        { do: "put", key: `count/${task.id}`, value: found },
      ]);
      return found;
    },
    { concurrency: 3, lease_s: 2, drain_s: 20, onError: () => {} },
  );
console.log(JSON.stringify(report));
