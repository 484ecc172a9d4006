import { announce } from "../ui/announce.js";
import { element, iconButton } from "../ui/dom.js";
import { download } from "../ui/download.js";
import { counted, whole } from "../ui/format.js";
import { Leaving } from "../ui/leaving.js";
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
  #leaving = new Leaving(window);
  #told = new WeakSet(); // conversations of which it was said that they do not fit

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
    window.addEventListener("storage", (event) => this.#reload(event.key));
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
    const body = chatBody(this.card, conversation, node);
    const made = conversation.add(node, { role: "assistant", content: "" });
    this.#save();
    if (this.#conversation !== conversation) return; // another tab has deleted it
    const running = { controller: new AbortController(), conversation };
    this.#running = running;
    this.composer.busy = true;
    this.#show();
    const view = this.messages.begin(conversation, made);
    try {
      await answer(this.api, this.card, body, made, running.controller.signal, this.#leaving, (piece) => {
        view.update(piece);
        if (performance.now() - this.#saved > SAVE_MS) this.#save(conversation);
      });
      this.messages.end(view);
    } finally {
      this.#save(conversation);
      if (this.#running === running) {
        this.#running = null;
        this.composer.busy = false;
      }
    }
    if (this.#conversation === conversation) this.#show();
    if (made.error) announce(`The answer failed: ${made.error}`);
    else if (made.ended !== "interrupted") {
      announce(made.ended === "stopped" ? "The answer was stopped." : "The answer is complete.");
    }
  }

  #save(conversation = this.#conversation) {
    if (conversation.isEmpty) return;
    const fits = this.store.save(conversation);
    this.#saved = performance.now();
    if (fits) this.#told.delete(conversation);
    else if (!this.#told.has(conversation)) this.#tellUnsaved("This conversation", [conversation]);
    this.#leaveRemoved();
  }

  /** Say that some do not fit in the storage; `subject` begins the sentence. */
  #tellUnsaved(subject, conversations) {
    for (const each of conversations) this.#told.add(each);
    notice(`${subject} did not fit in the browser's storage, and will be kept until the page is closed.`, {
      label: "Export",
      run: () => download("penstock-conversations.json", this.store.export(conversations)),
    });
  }

  #settings() {
    const conversation = this.#conversation;
    showSettings(conversation, this.card, () => {
      conversation.configured = Date.now();
      this.#save(conversation);
    });
  }

  #remove(conversation) {
    this.store.remove(conversation);
    if (this.#conversation === conversation) this.#leaveRemoved("The conversation was deleted.");
    else this.#tellRemoved("The conversation was deleted.", conversation);
    this.focus();
  }

  /** Open another conversation where the one that is open was deleted. */
  #leaveRemoved(words = "The conversation was deleted in another tab.") {
    const conversation = this.#conversation;
    if (!this.store.isRemoved(conversation)) return;
    this.open(new Conversation());
    this.#tellRemoved(words, conversation);
  }

  #tellRemoved(words, conversation) {
    this.sidebar.show();
    notice(words, {
      label: "Undo",
      run: () => {
        this.#save(this.store.restore(conversation));
        this.sidebar.show();
      },
    });
  }

  #import(text) {
    try {
      const { all, unsaved } = this.store.import(text);
      const imported = `${counted(all.length, "conversation")} imported`;
      if (unsaved.length === 0) notice(`${imported}.`);
      else this.#tellUnsaved(`${imported}; ${whole(unsaved.length)}`, unsaved);
    } catch (error) {
      notice(`The file cannot be imported: ${error.message}`);
    }
    this.sidebar.show();
  }

  /** Another tab has changed the storage. */
  #reload(key) {
    this.store.reload(key);
    this.#leaveRemoved();
    this.#show();
  }
}
