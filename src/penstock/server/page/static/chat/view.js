import { announce } from "../ui/announce.js";
import { element, iconButton } from "../ui/dom.js";
import { download } from "../ui/download.js";
import { counted } from "../ui/format.js";
import { notice } from "../ui/notice.js";
import { answer, chatBody } from "./answer.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { editMessage } from "./editor.js";
import { MessageList } from "./messages.js";
import { showSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";

const SAVE_MS = 1000; // between two saves of an answer that comes

/** The chat: conversations at the side, one of them open, and where the next message is written. */
export class ChatView {
  #conversation = new Conversation();
  #running = null; // the answer that comes: its controller, and its conversation
  #saved = 0;
  #told = false; // that the storage is full
  #removed = new WeakSet(); // conversations that an answer which still ends must not bring back

  constructor(api, card, store) {
    this.api = api;
    this.card = card;
    this.store = store;
    this.sidebar = new Sidebar(store, {
      open: (conversation) => this.open(conversation),
      create: () => this.open(new Conversation()),
      remove: (conversation) => this.#remove(conversation),
      importing: (text) => this.#import(text),
      exporting: () => download("penstock-conversations.json", store.export()),
    });
    this.messages = new MessageList({
      edit: (view) => editMessage(view, (text, attachments) => this.#edit(view.node, text, attachments)),
      again: (node) => this.#answer(this.#conversation.parent(node)),
      choose: (node) => this.#choose(node),
    });
    this.composer = new Composer({
      send: (text, attachments) => this.#send(text, attachments),
      stop: () => this.stop(),
      tools: [iconButton("sliders", "Options of this conversation", () => this.#settings())],
    });
    this.element = element(
      "div",
      { className: "chat" },
      this.sidebar.element,
      element(
        "section",
        { className: "conversation-pane", attributes: { "aria-label": "Conversation" } },
        this.messages.element,
        this.composer.element,
      ),
    );
    window.addEventListener("storage", () => this.#reload());
    this.open(this.#conversation);
  }

  focus() {
    this.composer.input.focus();
  }

  open(conversation) {
    if (this.#running && this.#running.conversation !== conversation) this.stop();
    this.#conversation = conversation;
    this.messages.clear();
    this.#show();
    this.messages.toEnd();
    this.element.dispatchEvent(new Event("conversation", { bubbles: true }));
    this.focus();
  }

  /** Stop the answer that comes; returns whether there was one. */
  stop() {
    this.#running?.controller.abort();
    return this.#running !== null;
  }

  #show() {
    this.messages.show(this.#conversation, this.#welcome());
    this.sidebar.show(this.#conversation.id);
    const call = this.#conversation.pendingCall(this.#conversation.last());
    this.composer.setLabel(call ? `Result of ${call.name}` : `Message ${this.card.id}`);
  }

  #welcome() {
    return element(
      "div",
      { className: "welcome" },
      element("h1", {}, this.card.id),
      element(
        "p",
        {},
        `Context of ${counted(this.card.max_model_len, "token")}. What is said here stays in this browser.`,
      ),
    );
  }

  #send(text, attachments) {
    const conversation = this.#conversation;
    const last = conversation.last();
    const call = conversation.pendingCall(last);
    const message = { role: call ? "tool" : "user", content: text };
    if (attachments.length) message.attachments = attachments;
    if (call) message.callId = call.id;
    const node = conversation.add(last, message);
    if (call && conversation.pendingCall(node)) {
      this.#show();
      this.#save();
    } else {
      this.#answer(node);
    }
  }

  #edit(node, text, attachments) {
    const message = { role: "user", content: text };
    if (attachments.length) message.attachments = attachments;
    this.#answer(this.#conversation.add(this.#conversation.parent(node), message));
  }

  #choose(node) {
    this.#conversation.choose(node);
    this.#show();
    this.#save();
    const label = this.messages.views.get(node.id).element;
    (label.querySelector("[data-branch]:not(:disabled)") ?? this.composer.input).focus();
  }

  /** Ask for an answer behind `node`, beside those that it has. */
  async #answer(node) {
    this.stop();
    const conversation = this.#conversation;
    const body = chatBody(this.card.id, conversation, node);
    const made = conversation.add(node, { role: "assistant", content: "" });
    const running = { controller: new AbortController(), conversation };
    this.#running = running;
    this.composer.busy = true;
    this.#save();
    this.#show();
    const view = this.messages.begin(conversation, made);
    try {
      await answer(this.api, body, made, running.controller.signal, (piece) => {
        view.update(piece);
        if (performance.now() - this.#saved > SAVE_MS) this.#save(conversation);
      });
      view.finish();
    } finally {
      this.#save(conversation);
      if (this.#running === running) {
        this.#running = null;
        this.composer.busy = false;
      }
    }
    if (this.#conversation === conversation) this.#show();
    if (made.error) announce(`The answer failed: ${made.error}`);
    else announce(made.ended === "stopped" ? "The answer was stopped." : "The answer is complete.");
  }

  #save(conversation = this.#conversation) {
    if (conversation.isEmpty || this.#removed.has(conversation)) return;
    const fits = this.store.save(conversation);
    this.#saved = performance.now();
    if (!fits && !this.#told) {
      this.#told = true;
      notice(
        "This conversation does not fit in the browser's storage, and is kept until the page is closed.",
        {
          label: "Export",
          run: () => download("penstock-conversation.json", this.store.export([conversation])),
        },
      );
    }
  }

  #settings() {
    const conversation = this.#conversation;
    showSettings(conversation, this.card, () => this.#save(conversation));
  }

  #remove(conversation) {
    if (this.#running?.conversation === conversation) this.stop();
    this.#removed.add(conversation);
    this.store.remove(conversation);
    if (this.#conversation === conversation) this.open(new Conversation());
    else this.sidebar.show();
    notice("The conversation was deleted.", {
      label: "Undo",
      run: () => {
        this.#removed.delete(conversation);
        this.#save(conversation);
        this.sidebar.show();
      },
    });
    this.focus();
  }

  #import(text) {
    try {
      const read = this.store.import(text);
      this.sidebar.show();
      notice(`${counted(read.length, "conversation")} imported.`);
    } catch (error) {
      notice(`The file cannot be imported: ${error.message}`);
    }
  }

  /** Another tab has changed the storage. */
  #reload() {
    this.store.reload(this.#conversation);
    this.sidebar.show();
  }
}
