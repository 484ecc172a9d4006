// A conversation as a tree: an edit or another answer is a branch beside what was there before.

import { wholeCalls } from "./calls.js";

export const FORMAT = "penstock.conversation.1";
const ROLES = ["user", "assistant", "tool"];

/** The sampling options that a conversation may set, all of them numbers. */
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * One conversation. Plain data, which is what is stored and exported:
 *
 * - `nodes`: the messages by id. A message has `role`, `content`, `parent` (an id, or null) and
 *   `created`; it may have `attachments` (texts with names), `reasoning`, `calls` (of tools),
 *   `callId` (which call a tool's result is of), `figures` of its answer, and `ended` (how it
 *   ended, where that was not by itself) or `error`.
 * - `chosen`: for each id, and "" for the beginning, which of the messages behind it is shown.
 * - `system` and `options`: the system prompt, the sampling options and the tools; `configured` is
 *   when they were last changed.
 */
export class Conversation {
  constructor(data = {}) {
    this.id = data.id ?? newId();
    this.title = data.title ?? "";
    this.created = data.created ?? Date.now();
    this.updated = data.updated ?? this.created;
    this.system = data.system ?? "";
    this.options = data.options ?? {};
    this.configured = data.configured ?? 0;
    this.nodes = data.nodes ?? {};
    this.chosen = data.chosen ?? {};
  }

  get isEmpty() {
    return Object.keys(this.nodes).length === 0;
  }

  /** The messages that are shown, from the first to the last. */
  path() {
    const shown = [];
    for (let id = this.chosen[""]; id !== undefined; id = this.chosen[id]) shown.push(this.nodes[id]);
    return shown;
  }

  last() {
    return this.path().at(-1) ?? null;
  }

  /** Add a message behind `parent` (a node or null) and show it. */
  add(parent, message) {
    const node = { id: newId(), parent: parent?.id ?? null, created: Date.now(), ...message };
    this.nodes[node.id] = node;
    this.chosen[node.parent ?? ""] = node.id;
    this.updated = node.created;
    if (!this.title && node.role === "user") this.title = titleOf(node);
    return node;
  }

  /** Messages in the same place, `node` among them, in the order in which they were made. */
  siblings(node) {
    const found = Object.values(this.nodes).filter((each) => each.parent === node.parent);
    return found.sort((a, b) => a.created - b.created); // another tab's came in later
  }

  choose(node) {
    this.chosen[node.parent ?? ""] = node.id;
  }

  parent(node) {
    return node.parent === null ? null : this.nodes[node.parent];
  }

  /** The messages up to `node`, itself included. */
  before(node) {
    const found = [];
    for (let each = node; each; each = this.parent(each)) found.unshift(each);
    return found;
  }

  /** The call of a tool whose result is still missing after `node`, or null. */
  pendingCall(node) {
    const done = new Set();
    let each = node;
    for (; each?.role === "tool"; each = this.parent(each)) done.add(each.callId);
    return wholeCalls(each).find((call) => !done.has(call.id)) ?? null;
  }

  /**
   * Take what `copy`, this conversation as another tab has stored it, has beyond this one: messages,
   * the rest of answers that come there, later options. Of what is shown here nothing changes but
   * what follows its end.
   */
  merge(copy) {
    for (const node of Object.values(copy.nodes)) {
      const had = this.nodes[node.id];
      if (!had || isFurther(node, had)) this.nodes[node.id] = node;
    }
    for (const [id, next] of Object.entries(copy.chosen)) this.chosen[id] ??= next;
    if (copy.configured > this.configured) {
      const { options } = this; // a dialog may hold them
      for (const name of Object.keys(options)) delete options[name];
      Object.assign(options, copy.options);
      this.system = copy.system;
      this.configured = copy.configured;
    }
    this.title ||= copy.title;
    this.updated = Math.max(this.updated, copy.updated);
  }

  /** Whether `copy` lacks a message of this conversation, or the end of one. */
  exceeds(copy) {
    return Object.values(this.nodes).some((node) => {
      const had = copy.nodes[node.id];
      return !had || (node.figures && !had.figures);
    });
  }

  data() {
    const { id, title, created, updated, system, options, configured, nodes, chosen } = this;
    return { format: FORMAT, id, title, created, updated, system, options, configured, nodes, chosen };
  }
}

/** Whether of two copies of a message the first has more of it. Only an answer that comes grows. */
function isFurther(node, had) {
  if (Boolean(node.figures) !== Boolean(had.figures)) return Boolean(node.figures);
  const size = ({ content, reasoning = "", calls = [] }) =>
    calls.reduce((sum, call) => sum + call.text.length, content.length + reasoning.length);
  return size(node) > size(had);
}

/** What the model reads of a message: its attachments, and its text. */
export function fullText(node) {
  const attached = (node.attachments ?? []).map((each) => each.text);
  return [...attached, node.content].filter((text) => text !== "").join("\n\n");
}

/**
 * The messages of a request: those up to `node`, after the system prompt. An answer of which nothing
 * came is left out, and what was then said is one message with what it should have answered: many
 * templates refuse two of a user in a row.
 */
export function requestMessages(conversation, node) {
  const messages = conversation.system ? [{ role: "system", content: conversation.system }] : [];
  for (const each of conversation.before(node)) {
    const last = messages.at(-1);
    if (each.role === "tool") {
      messages.push({ role: "tool", tool_call_id: each.callId, content: fullText(each) });
    } else if (each.role === "assistant") {
      const message = assistantMessage(each);
      if (message.content || message.reasoning_content || message.tool_calls) messages.push(message);
    } else if (last?.role === "user") {
      last.content += `\n\n${fullText(each)}`;
    } else {
      messages.push({ role: "user", content: fullText(each) });
    }
  }
  return messages;
}

function assistantMessage(node) {
  const message = { role: "assistant", content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  const calls = wholeCalls(node);
  if (calls.length) {
    message.tool_calls = calls.map(({ id, name, text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return message;
}

function titleOf(node) {
  const text = (node.content || node.attachments?.[0]?.text.slice(0, 200) || "").trim();
  const line = text.split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** Read what `data()` wrote, perhaps by hand. Throws an Error that says what is wrong with it. */
export function readConversation(data) {
  if (data?.format !== FORMAT) throw new Error("a conversation has no format that is known here");
  const nodes = {};
  for (const [id, node] of Object.entries(data.nodes ?? {})) {
    if (!ROLES.includes(node?.role) || typeof node.content !== "string") {
      throw new Error(`the message ${id} has no role and content`);
    }
    if (node.parent !== null && !Object.hasOwn(data.nodes, node.parent)) {
      throw new Error(`the message ${id} follows one that is not there`);
    }
    nodes[id] = cleanNode(id, node);
  }
  for (const node of Object.values(nodes)) checkEnds(nodes, node);
  const chosen = {};
  for (const [id, next] of Object.entries(data.chosen ?? {})) {
    if (Object.hasOwn(nodes, next) && (nodes[next].parent ?? "") === id) chosen[id] = next;
  }
  return new Conversation({
    id: newId(),
    title: text(data.title).slice(0, 200),
    created: Number(data.created) || Date.now(),
    updated: Number(data.updated) || Date.now(),
    system: text(data.system),
    options: cleanOptions(data.options),
    configured: Number(data.configured) || 0,
    nodes,
    chosen,
  });
}

function cleanOptions(options) {
  const clean = {};
  for (const name of SAMPLING) if (Number.isFinite(options?.[name])) clean[name] = options[name];
  const tools = text(options?.tools).trim();
  if (!tools) return clean;
  try {
    if (!Array.isArray(JSON.parse(tools))) throw new SyntaxError("no list");
  } catch {
    throw new Error("the tools of a conversation are no list in JSON");
  }
  return { ...clean, tools };
}

function cleanNode(id, node) {
  const clean = { id, parent: node.parent, role: node.role, content: node.content };
  clean.created = Number(node.created) || Date.now();
  if (Array.isArray(node.attachments)) {
    clean.attachments = node.attachments.map((each) => ({ name: text(each?.name), text: text(each?.text) }));
  }
  if (node.reasoning) clean.reasoning = text(node.reasoning);
  if (Array.isArray(node.calls)) {
    clean.calls = node.calls.map((each) => ({
      id: text(each?.id),
      name: text(each?.name),
      text: text(each?.text),
    }));
  }
  if (node.callId) clean.callId = text(node.callId);
  if (typeof node.figures === "object" && node.figures !== null) clean.figures = { ...node.figures };
  for (const name of ["ended", "error"]) if (node[name]) clean[name] = text(node[name]);
  return clean;
}

/** A message that follows itself would be read without end. */
function checkEnds(nodes, node) {
  const seen = new Set();
  for (let each = node; each; each = each.parent === null ? null : nodes[each.parent]) {
    if (seen.has(each.id)) throw new Error(`the message ${each.id} follows itself`);
    seen.add(each.id);
  }
}

function text(value) {
  return typeof value === "string" ? value : "";
}
