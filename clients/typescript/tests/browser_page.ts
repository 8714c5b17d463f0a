/** Runs in a page: uses the client, and posts what it saw to `/result`. The key is in the fragment. */

import { Keepstate, UnauthenticatedError, type Task } from "@keepstate/client";

async function use(ks: Keepstate): Promise<object> {
  const space = ks.space("page");
  await Promise.all(
    Array.from({ length: 5 }, () => space.documents.update<number>("n", (n) => n + 1, { default: 0 })),
  );
  await space.documents.put("values", { big: 2n ** 70n, bytes: new Uint8Array([0, 255]) });
  const version = (await space.documents.entry("n"))?.version;

  await space.events.append([1, 2]);
  const seen: unknown[] = [];
  setTimeout(() => void space.events.append([3]), 50);
  for await (const event of space.events.follow()) if (seen.push(event.data) === 3) break;

  await space.queue.put("a", { id: "t" });
  const report = await space.queue.run(
    (task: Task<string>) => task.step("shout", () => task.payload.toUpperCase()),
    {
      idle_s: 0.2,
    },
  );

  const talk = ks.conversation("page");
  const kinds: string[] = [];
  const reading = (async () => {
    for await (const change of talk.follow()) {
      kinds.push(change.kind);
      if (change.kind === "message") return change.entry?.message;
    }
    return undefined;
  })();
  await talk.reply(
    async (reply) => {
      for (const piece of ["Hello", " you"]) {
        reply.write(piece);
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    },
    { flush_s: 0.02 },
  );
  const stranger = new Keepstate(location.origin, { key: "ks_wrong" }).space("page");
  const refused = await stranger.documents
    .get("n")
    .catch((error: unknown) => error instanceof UnauthenticatedError);
  return {
    n: await space.documents.get("n"),
    values: String(Object.values((await space.documents.get<object>("values")) ?? {})),
    hasVersion: typeof version === "string",
    seen,
    completed: report.completed,
    result: await space.queue.result("t"),
    message: await reading,
    hadDeltas: kinds.includes("delta") || kinds.includes("started"),
    refused,
  };
}

const answer = await use(new Keepstate(location.origin, { key: location.hash.slice(1) })).catch(
  (error: unknown) => ({
    error: String(error),
    stack: (error as Error).stack,
  }),
);
await fetch("/result", { method: "POST", body: JSON.stringify(answer) });
