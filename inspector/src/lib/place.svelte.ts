/* The place: what the page shows. All of it is in the hash, so that every moment has a link.

   A view reads fields of `here`, and changes them by `go`. Fields that only one view knows are plain names,
   such as `here.stream`; an absent one is undefined. */

export type Place = {
  /** The name of a view, as `views.ts` has it. */
  view: string;
  /** The name of the space; empty in views of the whole store. */
  space: string;
  /** The branch whose commits are shown. */
  branch: string;
  /** The moment: a number of a commit or its id; empty for the newest. */
  at: string;
  /** The moment that `at` is compared with; empty for the parent. */
  to: string;
  /** A path within the state, as JSON. */
  path: string;
  /** The id of a task, an approval or a document's key. */
  id: string;
  [field: string]: string | undefined;
};

const NOWHERE: Readonly<Place> = { view: "inbox", space: "", branch: "main", at: "", to: "", path: "[]", id: "" };

export const here: Place = $state(read());

/** Change fields of the place. Opening something makes an entry of the browser's history; pass
 *  `replace` for steps on the way, such as each tick of a slider. */
export function go(change: Partial<Place>, { replace = false } = {}): void {
  Object.assign(here, change);
  const url = link({});
  if (url === (location.hash || "#")) return;
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
}

/** Open a space or a view of the store; every field that is not given is reset. */
export function open(place: Partial<Place>): void {
  clear();
  go({ ...NOWHERE, ...place });
}

/** Return a link to here with some fields changed. */
export function link(change: Partial<Place>): string {
  return linkTo({ ...here, ...change });
}

/** Return a link to a place; fields that are not given have their defaults. */
export function linkTo(place: Partial<Place>): string {
  const given = Object.entries({ ...NOWHERE, ...place }).filter(
    (field): field is [string, string] => field[1] !== undefined && field[1] !== "" && field[1] !== NOWHERE[field[0]],
  );
  return "#" + new URLSearchParams(given).toString();
}

function read(): Place {
  return { ...NOWHERE, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
}

function clear(): void {
  for (const field of Object.keys(here)) if (!(field in NOWHERE)) delete here[field];
}

addEventListener("popstate", () => {
  clear();
  Object.assign(here, read());
});
