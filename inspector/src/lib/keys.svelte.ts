/* The key map. A component registers its keys while it lives, and `?` lists them all.

   A binding is one key, such as "m" or "ArrowRight", or two in turn, such as "g t". Keys without a modifier
   can be turned off, as WCAG 2.1.4 asks for. They never act in a field in which people type. */

import { untrack } from "svelte";

type Binding = { keys: string; label: string; run: () => void };

let bindings = $state.raw<readonly Binding[]>([]);
let isOn = $state(stored() !== "off");
let first = "";
let timer = 0;

/** All bindings that act now, for the help. */
export function listBindings(): readonly Binding[] {
  return bindings;
}

/** Register keys until the component is destroyed. Call it while the component initialises. */
export function bindKeys(map: Record<string, [label: string, run: () => void]>): void {
  $effect(() => {
    const added = Object.entries(map).map(([keys, [label, run]]) => ({ keys, label, run }));
    bindings = [...untrack(() => bindings), ...added];
    return () => {
      bindings = untrack(() => bindings).filter((each) => !added.includes(each));
    };
  });
}

export const keySettings = {
  get isOn(): boolean {
    return isOn;
  },
  set isOn(value: boolean) {
    isOn = value;
    localStorage.setItem("keepstate-keys", value ? "on" : "off");
  },
};

/** Handle a key of the window. */
export function handleKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !isOn) return;
  const target = event.target as HTMLElement;
  if (target.closest("input, textarea, select, [contenteditable], dialog")) return;
  const pressed = first ? `${first} ${event.key}` : event.key;
  const found = bindings.findLast((each) => each.keys === pressed);
  clearTimeout(timer);
  first = "";
  if (found) {
    event.preventDefault();
    found.run();
  } else if (bindings.some((each) => each.keys.startsWith(`${event.key} `))) {
    first = event.key;
    timer = setTimeout(() => (first = ""), 1_500);
  }
}

function stored(): string | null {
  try {
    return localStorage.getItem("keepstate-keys");
  } catch {
    return null; // the browser keeps nothing
  }
}
