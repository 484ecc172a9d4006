// Conversations in the browser's local storage: one entry each, so that saving one writes no other.

import { Conversation, FORMAT, fullText, readConversation } from "./conversation.js";

const PREFIX = "penstock.conversation/";

/** Keeps conversations, the newest first. What does not fit stays in memory until the page ends. */
export class Store {
  #storage;
  #known = new Map();
  #unsaved = new Map(); // those for which there was no room, by id

  constructor(storage) {
    this.#storage = storage;
    this.reload();
  }

  /** Read everything again, as after another tab has written. `kept` is a conversation in use. */
  reload(kept = null) {
    this.#known.clear();
    for (let i = 0; i < this.#storage.length; i += 1) {
      const key = this.#storage.key(i);
      if (!key.startsWith(PREFIX)) continue;
      try {
        const data = JSON.parse(this.#storage.getItem(key));
        if (data.format === FORMAT) this.#known.set(data.id, new Conversation(data));
      } catch {
        // Of another version of this page, or written by hand: left as it is.
      }
    }
    for (const [id, conversation] of this.#unsaved) this.#known.set(id, conversation);
    if (kept && !kept.isEmpty) this.#known.set(kept.id, kept);
  }

  list() {
    return [...this.#known.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Whether the storage had room; if not, the conversation is kept in memory alone. */
  save(conversation) {
    this.#known.set(conversation.id, conversation);
    try {
      this.#storage.setItem(PREFIX + conversation.id, JSON.stringify(conversation.data()));
      this.#unsaved.delete(conversation.id);
      return true;
    } catch {
      this.#unsaved.set(conversation.id, conversation);
      return false;
    }
  }

  remove(conversation) {
    this.#known.delete(conversation.id);
    this.#unsaved.delete(conversation.id);
    this.#storage.removeItem(PREFIX + conversation.id);
  }

  /** Conversations that hold all words, in any branch, each with the text around the first one. */
  search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this.list().map((conversation) => ({ conversation, excerpt: "" }));
    const found = [];
    for (const conversation of this.list()) {
      const texts = [conversation.title, ...Object.values(conversation.nodes).map(fullText)];
      const lower = texts.map((text) => text.toLowerCase());
      if (!words.every((word) => lower.some((text) => text.includes(word)))) continue;
      const at = lower.findIndex((text, i) => i > 0 && text.includes(words[0]));
      found.push({ conversation, excerpt: at < 0 ? "" : around(texts[at], lower[at].indexOf(words[0])) });
    }
    return found;
  }

  export(conversations = this.list()) {
    return JSON.stringify({ conversations: conversations.map((each) => each.data()) }, null, 2);
  }

  /** Add the conversations of an export, all or none; returns them. Throws an Error that says why. */
  import(text) {
    const data = JSON.parse(text);
    const given = Array.isArray(data?.conversations) ? data.conversations : [data];
    const read = given.map(readConversation);
    for (const conversation of read) {
      if (!this.save(conversation)) throw new Error("the browser's storage is full");
    }
    return read;
  }
}

function around(text, at) {
  const start = Math.max(0, at - 30);
  const excerpt = text.slice(start, at + 60).replace(/\s+/g, " ");
  return start > 0 ? `…${excerpt}` : excerpt;
}
