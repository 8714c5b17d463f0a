/* Lanes of a graph of commits, newest first.

   A first parent stays in the lane of its child, and other parents get the first free one. Where several lanes
   lead to one commit, the leftmost keeps it, so that `main` stays straight. */
export type Node = { id: string; parents: readonly string[] };
export type Edge = { from: number; to: number; fromLane: number; toLane: number; isFirst: boolean };
export type Lanes = {
  /** The lane of each row. */
  lanes: number[];
  edges: Edge[];
  width: number;
};

/** Return the lanes of commits.
 *  @param first The commit whose line gets the leftmost lane, such as the head of main. */
export function layOut(nodes: readonly Node[], first?: string): Lanes {
  const rows = new Map(nodes.map((node, row) => [node.id, row]));
  /** The commit that each lane leads to. */
  const open: (string | null)[] = first !== undefined && rows.has(first) ? [first] : [];
  const lanes: number[] = [];
  let width = 1;
  const free = (): number => {
    const at = open.indexOf(null);
    return at >= 0 ? at : open.push(null) - 1;
  };
  for (const node of nodes) {
    const found = open.indexOf(node.id);
    const lane = found >= 0 ? found : free();
    open.forEach((id, at) => { if (id === node.id) open[at] = null; });
    open[lane] = null;
    lanes.push(lane);
    width = Math.max(width, open.length);
    node.parents.forEach((parent, place) => {
      if (!rows.has(parent)) return;
      // Several lanes may lead to one commit: each keeps its own until it gets there.
      if (place === 0) open[lane] = parent;
      else if (!open.includes(parent)) open[free()] = parent;
      width = Math.max(width, open.length);
    });
  }
  const edges = nodes.flatMap((node, from) =>
    node.parents.flatMap((parent, place): Edge[] => {
      const to = rows.get(parent);
      return to === undefined ? [] : [{ from, to, fromLane: lanes[from]!, toLane: lanes[to]!, isFirst: place === 0 }];
    }),
  );
  return { lanes, edges, width };
}

/** Return a branch that each commit belongs to: the first whose line of first parents has it, `main` before others. */
export function branchesOf(nodes: readonly Node[], heads: readonly { name: string; commit: string }[]): Map<string, string> {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const found = new Map<string, string>();
  for (const { name, commit } of [...heads].sort((one, other) => Number(other.name === "main") - Number(one.name === "main"))) {
    for (let node = byId.get(commit); node && !found.has(node.id); node = byId.get(node.parents[0] ?? "")) found.set(node.id, name);
  }
  return found;
}
