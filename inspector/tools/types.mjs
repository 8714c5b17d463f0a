/* Write src/lib/operations.ts: the types of all operations of the server, from its OpenAPI document.

   The file has types only, so the page carries no table of operations. `npm run build` writes it again. */
import { readFileSync, writeFileSync } from "node:fs";

const folder = new URL("..", import.meta.url);
const document = process.env.KEEPSTATE_OPENAPI ?? new URL("../docs/reference/openapi.json", folder);
const described = JSON.parse(readFileSync(document, "utf8"));

function typeOf(schema = {}) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  switch (schema.type) {
    case "array":
      return `(${typeOf(schema.items)})[]`;
    case "object":
      if (schema.properties) return membersOf(schema);
      return `Record<string, ${schema.additionalProperties ? typeOf(schema.additionalProperties) : "unknown"}>`;
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    default:
      return "unknown";
  }
}

function membersOf({ properties = {}, required = [] }) {
  const lines = Object.entries(properties).map(
    ([name, schema]) => `  ${JSON.stringify(name)}${required.includes(name) ? "" : "?"}: ${typeOf(schema)};`,
  );
  return `{\n${lines.join("\n")}\n}`;
}

function contentOf(content = {}) {
  const kind = Object.keys(content)[0];
  if (!kind) return "undefined";
  if (kind === "text/event-stream") return "never";
  return typeOf(content[kind].schema);
}

function operationOf(operation) {
  const query = (operation.parameters ?? []).filter((each) => each.in === "query");
  const named = query.map(
    ({ name, required, schema }) => `${JSON.stringify(name)}${required ? "" : "?"}: ${typeOf(schema)}${required ? "" : " | undefined"}`,
  );
  const answer = contentOf(operation.responses["200"]?.content);
  const event = operation.responses["200"]?.content?.["text/event-stream"];
  const data = event ? typeOf(event["x-event-data"] ?? operation["x-event-data"]) : "never";
  const body = contentOf(operation.requestBody?.content);
  return `{ query: { ${named.join("; ")} }; body: ${body}; answer: ${answer}; event: ${data} }`;
}

const schemas = Object.entries(described.components.schemas).map(
  ([name, schema]) => `export type ${name} = ${typeOf(schema)};`,
);
const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(
    ([method, operation]) => `  "${method.toUpperCase()} ${path}": ${operationOf(operation)};`,
  ),
);
const text = [
  "/* Made by tools/types.mjs from docs/reference/openapi.json. */",
  ...schemas,
  `export type Operations = {\n${operations.join("\n")}\n};`,
  "",
].join("\n\n");
writeFileSync(new URL("src/lib/operations.ts", folder), text);
