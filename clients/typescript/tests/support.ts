/** What the tests share: the server that they are given, and a network in front of it that fails as told. */

import { randomUUID } from "node:crypto";
import { createServer, request, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as wait } from "node:timers/promises";

import { Keepstate, type KeepstateOptions, type Space } from "@keepstate/client";

export const URL_OF_SERVER = given("KEEPSTATE_URL");
export const KEY = given("KEEPSTATE_KEY");

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`set ${name}`);
  return value;
}

export function connect(options: KeepstateOptions = {}, url = URL_OF_SERVER): Keepstate {
  return new Keepstate(url, { key: KEY, ...options });
}

export function newSpace(ks = connect()): Space {
  return ks.space(`node/${randomUUID()}`);
}

/** Wait until something is so; the test's own timeout is the limit. */
export async function until(isSo: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isSo())) await wait(20);
}

/** Return all items of an iteration that ends. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  return await take(items, Infinity);
}

/** Return the first items of an iteration. */
export async function take<T>(items: AsyncIterable<T>, count: number): Promise<T[]> {
  const found: T[] = [];
  if (count === 0) return found;
  for await (const item of items) if (found.push(item) === count) break;
  return found;
}

/**
 * What becomes of a request: the connection breaks before it arrives, or before its reply does, or after some
 * bytes of it; or something between answers instead.
 */
export type Fault =
  "refuse" | "lose" | { cutAfter: number } | { status: number; headers?: Record<string, string> } | undefined;

export interface Network {
  url: string;
  /** The requests that came, as `METHOD path`. */
  seen: string[];
  /** The number of open requests. */
  open: number;
  fault: (name: string, count: number) => Fault;
  close(): Promise<void>;
}

/** Return an address where nothing listens. */
export async function deadUrl(): Promise<string> {
  const net = await network();
  await net.close();
  return net.url;
}

/** Return a network in front of the server. */
export async function network(fault: Network["fault"] = () => undefined): Promise<Network> {
  const target = new URL(URL_OF_SERVER);
  const server = createServer((incoming, outgoing) => {
    const name = `${incoming.method} ${new URL(incoming.url ?? "/", target).pathname}`;
    found.seen.push(name);
    found.open += 1;
    outgoing.on("close", () => (found.open -= 1));
    const given = found.fault(name, found.seen.length);
    if (given === "refuse") incoming.socket.destroy();
    else if (typeof given === "object" && "status" in given) {
      incoming.resume();
      outgoing.writeHead(given.status, given.headers).end("a proxy says no");
    } else forward(incoming, outgoing, given);
  });
  function forward(incoming: IncomingMessage, outgoing: ServerResponse, given: Fault): void {
    const headers = { ...incoming.headers, host: target.host };
    const options = {
      host: target.hostname,
      port: target.port,
      method: incoming.method,
      path: incoming.url,
      headers,
    };
    const onward = request(options, (reply) => {
      if (given === "lose") {
        reply.resume().on("end", () => incoming.socket.destroy());
        return;
      }
      outgoing.writeHead(reply.statusCode ?? 500, reply.headers);
      let left = typeof given === "object" && "cutAfter" in given ? given.cutAfter : Infinity;
      reply.on("data", (chunk: Buffer) => {
        outgoing.write(chunk.subarray(0, Math.min(left, chunk.length)));
        left -= chunk.length;
        if (left <= 0) outgoing.socket?.end(() => incoming.socket.destroy());
      });
      reply.on("end", () => outgoing.end());
      reply.on("error", () => incoming.socket.destroy());
    });
    onward.on("error", () => incoming.socket.destroy());
    outgoing.on("close", () => onward.destroy());
    incoming.pipe(onward);
  }
  const found: Network = {
    url: "",
    seen: [],
    open: 0,
    fault,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  // A test that fails leaves it open, and must not keep the process alive.
  server.on("connection", (socket) => socket.unref());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  found.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return found;
}
