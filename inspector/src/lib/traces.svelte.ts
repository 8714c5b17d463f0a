/* Links to traces, which another program shows. The server says where; only the id of a trace is put there. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$/;
const place = $state({ url: "" });

/** Set the address of a trace, which has `{trace_id}`; empty for none. Addresses that are not of the web are dropped. */
export function setTraceUrl(url: string): void {
  place.url = /^https?:\/\//i.test(url) ? url : "";
}

/** Return the link to the trace of a moment or a task, if it has a `traceparent` and the server knows where traces are. */
export function linkToTrace(traceparent: string | null | undefined): string | undefined {
  const id = TRACEPARENT.exec(traceparent ?? "")?.[1];
  return id && place.url ? place.url.replaceAll("{trace_id}", id) : undefined;
}
