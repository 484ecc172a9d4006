// One answer while it comes: a request, and the message that its events make.

import { ConnectionLost, ServerError } from "../server/api.js";
import { endCalls } from "./calls.js";
import { requestMessages, SAMPLING } from "./conversation.js";

/** The body of the request for an answer of `card`'s model that follows `node`. */
export function chatBody(card, conversation, node) {
  const { options } = conversation;
  const body = {
    model: card.id,
    messages: requestMessages(conversation, node),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...sampling(options, card),
  };
  if (options.tools?.trim()) body.tools = JSON.parse(options.tools);
  return body;
}

/** The sampling options that are set, and for the others what the server has the page begin with. */
export function sampling(options, card) {
  const set = SAMPLING.filter((name) => Number.isFinite(options[name]));
  const given = Object.fromEntries(set.map((name) => [name, options[name]]));
  return { ...card.interactive_defaults, ...given };
}

/** Times and counts of one answer. */
export class Figures {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.last = null;
    this.usage = null;
  }

  /** Note that tokens have come. */
  token() {
    this.last = performance.now();
    this.first ??= this.last;
  }

  /** What is kept with the message: seconds, tokens, and tokens per second after the first. */
  data() {
    const tokens = this.usage?.completion_tokens ?? null;
    const figures = { tokens };
    if (this.first !== null) {
      figures.firstToken = (this.first - this.began) / 1000;
      const decode = (this.last - this.first) / 1000;
      if (tokens > 1 && decode > 0) figures.rate = (tokens - 1) / decode;
    }
    const details = this.usage?.prompt_tokens_details;
    if (this.usage) figures.prompt = this.usage.prompt_tokens;
    if (details?.cached_tokens) figures.cached = details.cached_tokens;
    return figures;
  }
}

/**
 * Fill `node` with an answer of `card`'s model as it comes. `changed(piece)` is called with what each event adds:
 * `content`, `reasoning` or `calls`. Whatever happens, it ends without an exception:
 * `node.ended` is "stopped", which limit has cut it (`limit()`), or "interrupted" where `leaving` says
 * that the page is being left, or `node.error` says what went wrong.
 */
export async function answer(api, card, body, node, signal, leaving, changed) {
  const figures = new Figures();
  let cut = false;
  try {
    for await (const event of api.events("/v1/chat/completions", body, signal)) {
      if (event.usage) figures.usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      if (add(node, choice.delta, changed)) figures.token();
      if (choice.finish_reason === "length") cut = true;
    }
    if (cut) node.ended = limit(card, body, figures.usage); // the counts come last
  } catch (error) {
    if (signal.aborted) node.ended = "stopped";
    else if (leaving.now && error instanceof ConnectionLost) node.ended = "interrupted";
    else {
      node.error = error.message;
      if (!(error instanceof ServerError || error instanceof ConnectionLost)) console.error(error);
    }
  } finally {
    endCut(node, changed);
    node.figures = figures.data();
  }
}

/** Which limit has cut an answer: "context", "max_tokens" of the request, or "length", the server's. */
function limit(card, body, usage) {
  if (usage?.prompt_tokens + usage?.completion_tokens >= card.max_model_len) return "context";
  return body.max_tokens === undefined ? "length" : "max_tokens";
}

/** A call that was cut can be neither answered nor sent on; as text it keeps what came of it. */
function endCut(node, changed) {
  if (!node.calls) return;
  const content = endCalls(node);
  changed({ calls: node.calls ?? [] });
  if (content) changed({ content });
}

/** Add what an event brings; returns whether it was anything. */
function add(node, delta, changed) {
  if (delta.reasoning_content) {
    node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
    changed({ reasoning: delta.reasoning_content });
  }
  if (delta.content) {
    node.content += delta.content;
    changed({ content: delta.content });
  }
  for (const part of delta.tool_calls ?? []) {
    node.calls ??= [];
    const call = (node.calls[part.index] ??= { id: "", name: "", text: "" });
    call.id ||= part.id ?? "";
    call.name ||= part.function?.name ?? "";
    call.text += part.function?.arguments ?? "";
    changed({ calls: node.calls });
  }
  return Boolean(delta.reasoning_content || delta.content || delta.tool_calls?.length);
}
