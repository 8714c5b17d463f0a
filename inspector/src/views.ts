/* The table of views: the only list of what the page can show. A new view is a file in `views/` and a row. */
import type { Component } from "svelte";
import About from "./views/About.svelte";
import Branches from "./views/Branches.svelte";
import Compare from "./views/Compare.svelte";
import Conversation from "./views/Conversation.svelte";
import Documents from "./views/Documents.svelte";
import Events from "./views/Events.svelte";
import Find from "./views/Find.svelte";
import Inbox from "./views/Inbox.svelte";
import Store from "./views/Store.svelte";
import Tasks from "./views/Tasks.svelte";
import Thread from "./views/Thread.svelte";
import Timeline from "./views/Timeline.svelte";

export type View = {
  /** The name in links. */
  name: string;
  title: string;
  /** The key after `g` that opens it. */
  key: string;
  /** Whether it shows the whole store, or one space. */
  scope: "store" | "space";
  component: Component;
  /** Whether a space has something to show here; without it, every space has. */
  suits?: (space: string) => boolean;
};

export const VIEWS: readonly View[] = [
  { name: "inbox", title: "Inbox", key: "i", scope: "store", component: Inbox },
  { name: "find", title: "Find", key: "f", scope: "store", component: Find },
  { name: "store", title: "Store", key: "s", scope: "store", component: Store },
  { name: "conversation", title: "Conversation", key: "c", scope: "space", component: Conversation, suits: (space) => /^(session|thread|run)\//.test(space) },
  { name: "thread", title: "Thread", key: "l", scope: "space", component: Thread, suits: (space) => space.startsWith("thread/") },
  { name: "timeline", title: "Timeline", key: "t", scope: "space", component: Timeline },
  { name: "tasks", title: "Tasks", key: "q", scope: "space", component: Tasks },
  { name: "documents", title: "Documents", key: "d", scope: "space", component: Documents },
  { name: "branches", title: "Branches", key: "b", scope: "space", component: Branches },
  { name: "compare", title: "What if", key: "w", scope: "space", component: Compare },
  { name: "events", title: "Events", key: "e", scope: "space", component: Events },
  { name: "about", title: "Space", key: "a", scope: "space", component: About },
];

/** Return the view that a space opens with. */
export function firstView(space: string): string {
  return space.startsWith("session/") ? "conversation" : space.startsWith("thread/") ? "thread" : "documents";
}
