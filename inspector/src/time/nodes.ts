/* The graph of a LangGraph thread, as its commits tell it: the nodes that ran at each step, in order. */
import type { StoredCommit } from "../lib/api.ts";

export type Step = { commit: StoredCommit; source: string; step: number; checkpoint: string; nodes: string[] };
export type GraphNode = { name: string; column: number; row: number; runs: number };
export type GraphEdge = { from: string; to: string; count: number };
export type Graph = { nodes: GraphNode[]; edges: GraphEdge[]; columns: number; rows: number };

export const START = "start";

/** Return the step of a commit of a thread: `loop, step 3, <checkpoint>`, with the nodes in its notes. */
export function stepOf(commit: StoredCommit): Step {
  const found = /^(\w+), step (-?\d+|\?), (\S+)$/.exec(commit.message);
  const nodes = (commit.meta.nodes ?? "").split(", ").filter(Boolean);
  return { commit, source: found?.[1] ?? "", step: Number(found?.[2] ?? NaN), checkpoint: found?.[3] ?? "", nodes };
}

/** Return the graph of some steps in order, and of the nodes that come next. */
export function graphOf(steps: readonly Step[], next: readonly string[]): Graph {
  const runs = new Map<string, number>([[START, 0]]);
  const columns = new Map<string, number>([[START, 0]]);
  const edges = new Map<string, GraphEdge>();
  const lead = (from: readonly string[], to: readonly string[], count: number) => {
    for (const one of from) {
      for (const other of to) {
        const key = `${one}\n${other}`;
        const edge = edges.get(key) ?? { from: one, to: other, count: 0 };
        edge.count += count;
        edges.set(key, edge);
        if (!columns.has(other)) columns.set(other, (columns.get(one) ?? 0) + 1);
      }
    }
  };
  let last = [START];
  for (const step of steps) {
    if (step.source === "input") last = [START];
    if (!step.nodes.length) continue;
    lead(last, step.nodes, 1);
    for (const node of step.nodes) runs.set(node, (runs.get(node) ?? 0) + 1);
    last = step.nodes;
  }
  if (next.length) {
    lead(last, next, 0);
    for (const node of next) if (!runs.has(node)) runs.set(node, 0);
  }
  const heights: number[] = [];
  const nodes = [...columns].map(([name, column]): GraphNode => {
    const row = heights[column] ?? 0;
    heights[column] = row + 1;
    return { name, column, row, runs: runs.get(name) ?? 0 };
  });
  return { nodes, edges: [...edges.values()], columns: heights.length, rows: Math.max(1, ...heights.map((each) => each ?? 0)) };
}
