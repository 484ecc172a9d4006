// How a message is shown: its text, what the model thought and called, and what can be done with it.

import { MarkdownStream, showMarkdown } from "../markdown/stream.js";
import { copy } from "../ui/clipboard.js";
import { element, iconButton, replaceChildren } from "../ui/dom.js";
import { counted, seconds, short, whole } from "../ui/format.js";
import { attachmentView } from "./attachments.js";

const ENDS = {
  context: "cut: the context is full",
  max_tokens: 'cut at "most tokens"', // the option's name
  length: "cut at the server's limit of tokens",
};
const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

/**
 * One message. `actions` has what its buttons do: `edit`, `again`, `choose(sibling)`. While it is
 * `live`, `update(piece)` adds what comes and `finish()` shows how it ended.
 */
export class MessageView {
  #stream = null;
  #thoughts = null;
  #moved;

  constructor(node, siblings, actions, { live = false, moved = () => {} } = {}) {
    this.node = node;
    this.siblings = siblings;
    this.actions = actions;
    this.#moved = moved;
    this.live = live;
    this.edited = false; // whether a field to change it is in its place
    this.text = element("div", { className: "text" });
    this.reasoning = element("div", { className: "reasoning-slot" });
    this.calls = element("div", { className: "calls" });
    this.foot = element("footer", {});
    this.element = element(
      "article",
      { className: `message ${node.role}`, attributes: { "aria-label": NAMES[node.role] } },
      node.attachments?.map(attachmentView),
      this.reasoning,
      this.text,
      this.calls,
      this.foot,
    );
    if (live) this.#begin();
    else this.#show();
  }

  update(piece) {
    if (piece.reasoning) {
      if (!this.#thoughts) this.#showReasoning("", true);
      this.#thoughts.add(piece.reasoning);
    }
    if (piece.content) {
      if (this.waiting) this.#endWaiting();
      this.#stream.add(piece.content);
    }
    if (piece.calls) {
      this.#endWaiting();
      this.#showCalls(piece.calls);
      this.#moved();
    }
  }

  finish() {
    this.live = false;
    this.element.removeAttribute("aria-busy");
    this.#endWaiting();
    this.#stream?.flush();
    this.#thoughts?.flush();
    this.#showFoot();
    this.#moved();
  }

  #begin() {
    this.element.setAttribute("aria-busy", "true");
    this.waiting = element(
      "p",
      { className: "waiting", attributes: { "aria-label": "Waiting for the first token" } },
      element("span", {}),
      element("span", {}),
      element("span", {}),
    );
    this.text.before(this.waiting);
    this.text.classList.add("markdown");
    this.#stream = new MarkdownStream(this.text, this.#moved);
  }

  #endWaiting() {
    this.waiting?.remove();
    this.waiting = null;
    if (this.#thoughts) this.reasoning.firstChild.open = false;
  }

  #show() {
    const { node } = this;
    if (node.reasoning) this.#showReasoning(node.reasoning, false);
    if (node.role === "assistant") {
      this.text.classList.add("markdown");
      showMarkdown(this.text, node.content);
    } else {
      this.text.textContent = node.content;
    }
    this.text.hidden = node.content === "";
    if (node.calls?.length) this.#showCalls(node.calls);
    this.#showFoot();
  }

  #showReasoning(text, live) {
    const body = element("div", { className: "markdown" });
    const label = live ? "Reasoning" : `Reasoning (${whole(text.length)} characters)`;
    replaceChildren(
      this.reasoning,
      element("details", { className: "reasoning", open: live }, element("summary", {}, label), body),
    );
    if (live) this.#thoughts = new MarkdownStream(body, this.#moved);
    else showMarkdown(body, text);
  }

  #showCalls(calls) {
    replaceChildren(
      this.calls,
      calls.map((call) =>
        element(
          "div",
          { className: "call", attributes: { role: "group", "aria-label": `Call of ${call.name}` } },
          element("div", { className: "call-head" }, "calls ", element("code", {}, call.name)),
          element("pre", { tabIndex: 0 }, pretty(call.text)),
        ),
      ),
    );
  }

  #showFoot() {
    const { node } = this;
    replaceChildren(
      this.foot,
      node.error && element("p", { className: "error", attributes: { role: "alert" } }, node.error),
      element("div", { className: "message-actions" }, this.#branches(), this.#buttons(), this.#figures()),
    );
  }

  #buttons() {
    const { node, actions } = this;
    const copied = iconButton("copy", "Copy", () => copy(node.content, copied));
    return [
      copied,
      actions.edit && node.role === "user" && iconButton("edit", "Edit", () => actions.edit(this)),
      actions.again &&
        node.role === "assistant" &&
        iconButton("again", node.error ? "Try again" : "Another answer", () => actions.again(node)),
    ];
  }

  #branches() {
    const { node, siblings, actions } = this;
    if (siblings.length < 2) return null;
    const at = siblings.indexOf(node);
    const step = (to, name, label) =>
      iconButton(name, label, () => actions.choose(siblings[to]), {
        disabled: !siblings[to],
        data: { branch: name },
      });
    return element(
      "span",
      { className: "branches", attributes: { role: "group", "aria-label": "Branches" } },
      step(at - 1, "left", "Branch before"),
      element("span", {}, `${at + 1}/${siblings.length}`),
      step(at + 1, "right", "Branch after"),
    );
  }

  #figures() {
    const { figures, ended } = this.node;
    if (!figures) return null;
    const texts = [];
    if (ended) texts.push(ENDS[ended] ?? ended);
    if (figures.tokens) texts.push(counted(figures.tokens, "token"));
    if (figures.rate) texts.push(`${short(figures.rate)} tokens/s`);
    if (figures.firstToken !== undefined) texts.push(`first after ${seconds(figures.firstToken)}`);
    if (figures.cached)
      texts.push(`${whole(figures.cached)} of ${whole(figures.prompt)} prompt tokens cached`);
    return element("span", { className: "figures" }, texts.join(" · "));
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // as far as it has come
  }
}
