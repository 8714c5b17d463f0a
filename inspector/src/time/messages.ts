/* Messages of any library as blocks that the page draws: text, calls of tools, their results, images.

   It reads the forms of OpenAI's chat and Responses, Anthropic, Gemini, LangChain and Pydantic AI. What it
   does not know becomes a block with the value itself, so nothing is hidden. */

export type Block =
  | { type: "text"; text: string }
  | { type: "thinking"; text: string }
  | { type: "call"; id: string; name: string; args: unknown }
  | { type: "result"; id: string; value: unknown; isError: boolean }
  | { type: "image"; source: string }
  | { type: "link"; kind: string; address: string }
  | { type: "other"; value: unknown };

export type Said = { role: string; blocks: Block[] };

type Fields = Record<string, unknown>;

const ROLES: Record<string, string> = {
  human: "user", ai: "assistant", model: "assistant", function: "tool", developer: "system",
  request: "user", response: "assistant", HumanMessage: "user", AIMessage: "assistant", AIMessageChunk: "assistant",
  ToolMessage: "tool", SystemMessage: "system", FunctionMessage: "tool", ChatMessage: "message",
};
const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;

/** Return a message as its role and blocks. */
export function read(message: unknown): Said {
  if (Array.isArray(message)) {
    const all = message.map(read);
    return { role: all.find((each) => each.role !== "message")?.role ?? "message", blocks: all.flatMap((each) => each.blocks) };
  }
  if (!isFields(message)) return { role: "message", blocks: [typeof message === "string" ? text(message) : { type: "other", value: message }] };
  const role = roleOf(message);
  if (message.type === "function_call") return { role: "assistant", blocks: [call(message.call_id, message.name, message.arguments)] };
  if (message.type === "function_call_output") return { role: "tool", blocks: [result(message.call_id, message.output, false)] };
  const isResult = role === "tool" && typeof message.tool_call_id === "string";
  const blocks: Block[] = isResult
    ? [result(message.tool_call_id, plainText(message.content) ?? message.content, message.status === "error")]
    : [...content(message.content ?? message.parts)];
  const calls = message.tool_calls;
  if (Array.isArray(calls)) {
    for (const each of calls) {
      const inner = isFields(each) && isFields(each.function) ? each.function : each;
      if (!isFields(inner)) blocks.push({ type: "other", value: each });
      else if (!blocks.some((block) => block.type === "call" && block.id === (each as Fields).id)) blocks.push(call((each as Fields).id, inner.name, inner.arguments ?? inner.args));
    }
  } else if (calls) blocks.push({ type: "other", value: calls });
  if (typeof message.refusal === "string") blocks.push(text(message.refusal));
  const isKnown = ["role", "content", "parts", "kind", "tool_calls"].some((name) => name in message);
  return { role, blocks: blocks.length || isKnown ? blocks : [{ type: "other", value: message }] };
}

function roleOf(message: Fields): string {
  const given = message.role ?? /\.(\w+)@/.exec(String(message["@type"] ?? ""))?.[1] ?? message.kind ?? (message.type === "message" ? "message" : message.type);
  return typeof given === "string" && given ? (ROLES[given] ?? given) : "message";
}

function* content(given: unknown): Generator<Block> {
  if (typeof given === "string") {
    if (given) yield text(given);
  } else if (Array.isArray(given)) {
    for (const part of given) yield* block(part);
  } else if (given !== null && given !== undefined) yield { type: "other", value: given };
}

function* block(part: unknown): Generator<Block> {
  if (typeof part === "string") return void (yield text(part));
  if (!isFields(part)) return void (yield { type: "other", value: part });
  const kind = part.type ?? part.part_kind ?? part["@type"];
  if (kind === "tool_use" || kind === "tool_call" || kind === "tool-call") yield call(part.id ?? part.tool_call_id, part.name ?? part.tool_name, part.input ?? part.args);
  else if (kind === "tool_result" || kind === "tool-return") yield result(part.tool_use_id ?? part.tool_call_id, plainText(part.content) ?? part.content, part.is_error === true);
  else if (isFields(part.functionCall)) yield call(part.functionCall.id ?? part.functionCall.name, part.functionCall.name, part.functionCall.args);
  else if (isFields(part.functionResponse)) yield result(part.functionResponse.id ?? part.functionResponse.name, part.functionResponse.response, false);
  else if (kind === "thinking" || kind === "reasoning") yield { type: "thinking", text: String(part.thinking ?? part.text ?? plainText(part.summary) ?? "") };
  else if (typeof part.text === "string") yield text(part.text);
  else if (typeof part.content === "string") yield text(part.content);
  else yield picture(part) ?? { type: "other", value: part };
}

function picture(part: Fields): Block | null {
  const source = isFields(part.source) ? part.source : isFields(part.inlineData) ? part.inlineData : part;
  const data = source.data;
  const media = source.media_type ?? source.mimeType ?? source.mime_type ?? source.mediaType;
  if (typeof data === "string" && typeof media === "string") return image(`data:${media};base64,${data}`);
  const address = (isFields(part.image_url) ? part.image_url.url : part.image_url) ?? source.url ?? part.file_url;
  return typeof address === "string" ? image(address) : null;
}

/** Only pictures that are in the message are drawn: the page loads nothing from elsewhere. */
function image(address: string): Block {
  if (IMAGE.test(address)) return { type: "image", source: address };
  return { type: "link", kind: "image", address: address.startsWith("data:") ? address.slice(0, 60) : address };
}

function call(id: unknown, name: unknown, args: unknown): Block {
  return { type: "call", id: String(id ?? ""), name: String(name ?? "?"), args: parsed(args) };
}

function result(id: unknown, value: unknown, isError: boolean): Block {
  return { type: "result", id: String(id ?? ""), value: parsed(value), isError };
}

function text(given: string): Block {
  return { type: "text", text: given };
}

function plainText(given: unknown): string | null {
  if (typeof given === "string") return given;
  if (!Array.isArray(given) || !given.length || !given.every((part) => isFields(part) && typeof part.text === "string")) return null;
  return given.map((part: Fields) => part.text).join("\n");
}

function parsed(given: unknown): unknown {
  if (typeof given !== "string" || !/^\s*[[{]/.test(given)) return given;
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
