/** Types of requests and answers by path and method, taken from the generated types of the OpenAPI document. */

import type { components, paths } from "./api.js";

export type Schemas = components["schemas"];
export type Path = keyof paths;
export type Method<P extends Path> = {
  [M in keyof paths[P]]: paths[P][M] extends { responses: unknown } ? M : never;
}[keyof paths[P]] &
  string;

type Parameters<O> = O extends { parameters: infer P } ? P : never;
type Body<O> = O extends { requestBody: { content: infer C } } ? { body: C[keyof C] } : { body?: never };

/** The query and the body of an operation. */
export type Input<P extends Path, M extends Method<P>> = Pick<
  Parameters<paths[P][M]> & { query?: unknown },
  "query"
> &
  Body<paths[P][M]>;

/** The answer of an operation. */
export type Answer<P extends Path, M extends Method<P>> = paths[P][M] extends {
  responses: { 200: { content: { "application/json": infer A } } };
}
  ? A
  : never;

/** The parameters of an operation without those that a space or a session gives. */
export type Query<P extends Path, M extends Method<P>> = Omit<
  NonNullable<Input<P, M>["query"]>,
  "space" | "session" | "fork" | "stream"
>;
