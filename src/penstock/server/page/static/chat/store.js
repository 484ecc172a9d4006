// Conversations in the browser's local storage: one entry each, so that saving one writes no other.

import { Conversation, FORMAT, fullText, readConversation } from "./conversation.js";

const PREFIX = "penstock.conversation/";

/**
 * Keeps conversations, the newest first. What does not fit stays in memory until the page ends.
 *
 * Other tabs write to the same storage. Each entry is read again before it is written, and what it has
 * beyond the conversation here is merged; one that is gone though it was there has been deleted, and
 * is not written again. Between the two another tab may still write: it then hears of this tab's
 * entry by a `storage` event, and `reload` makes one of both.
 */
export class Store {
  #storage;
  #known = new Map();
  #seen = new Map(); // what the storage held when it was last looked at, by id
  #unsaved = new Set(); // ids of those for which there was no room
  #removed = new Set(); // ids of those that were deleted, here or in another tab

  constructor(storage) {
    this.#storage = storage;
    this.reload();
  }

  /** Take what another tab has written or deleted: below `key` or, if that is null, anywhere. */
  reload(key = null) {
    const keys = key === null ? this.#keys() : [key];
    for (const each of keys) if (each.startsWith(PREFIX)) this.#take(each.slice(PREFIX.length));
  }

  /** The keys of entries, and of those that were there before. */
  #keys() {
    const keys = new Set([...this.#seen.keys()].map((id) => PREFIX + id));
    for (let i = 0; i < this.#storage.length; i += 1) keys.add(this.#storage.key(i));
    return keys;
  }

  #take(id) {
    const text = this.#storage.getItem(PREFIX + id);
    if (text === null) {
      if (this.#seen.has(id)) this.#forget(id);
      return;
    }
    const known = this.#known.get(id);
    const stored = this.#read(id, text);
    if (!stored) return;
    this.#removed.delete(id); // another tab took the deletion back
    if (!known) {
      this.#known.set(id, stored);
    } else {
      known.merge(stored);
      if (known.exceeds(stored)) this.#write(known);
    }
  }

  /** The conversation of an entry, or null if it was seen before or is none of this page's. */
  #read(id, text) {
    if (text === this.#seen.get(id)) return null;
    try {
      const data = JSON.parse(text);
      if (data.format !== FORMAT || data.id !== id) return null;
      this.#seen.set(id, text);
      return new Conversation(data);
    } catch {
      return null; // of another version of this page, or written by hand: left as it is
    }
  }

  #forget(id) {
    this.#known.delete(id);
    this.#seen.delete(id);
    this.#unsaved.delete(id);
    this.#removed.add(id);
  }

  #write(conversation) {
    const { id } = conversation;
    const text = JSON.stringify(conversation.data());
    try {
      this.#storage.setItem(PREFIX + id, text);
    } catch {
      this.#unsaved.add(id);
      return false;
    }
    this.#seen.set(id, text);
    this.#unsaved.delete(id);
    return true;
  }

  list() {
    return [...this.#known.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Whether a conversation was deleted, here or in another tab. */
  isRemoved({ id }) {
    return this.#removed.has(id);
  }

  /**
   * Keep a conversation, with what other tabs have added to it; one that was deleted stays so.
   * Returns false where the storage has no room, and it is kept in memory alone.
   */
  save(conversation) {
    const { id } = conversation;
    const text = this.#storage.getItem(PREFIX + id);
    if (text === null && this.#seen.has(id)) this.#forget(id);
    if (this.#removed.has(id)) return true;
    const stored = text !== null && this.#read(id, text);
    if (stored) conversation.merge(stored);
    this.#known.set(id, conversation);
    return this.#write(conversation);
  }

  remove({ id }) {
    this.#forget(id);
    this.#storage.removeItem(PREFIX + id);
    for (const each of this.#unsaved) this.#write(this.#known.get(each)); // there may be room now
  }

  /** Allow a conversation that was deleted to be saved; returns it, or what another tab had back. */
  restore(conversation) {
    this.#removed.delete(conversation.id);
    return this.#known.get(conversation.id) ?? conversation;
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

  /**
   * Add the conversations of an export, all or none. Returns `all`, and those of them, `unsaved`, that
   * are kept in memory alone since the storage has no room. Throws an Error that says why there are none.
   */
  import(text) {
    const data = JSON.parse(text);
    const given = Array.isArray(data?.conversations) ? data.conversations : [data];
    const all = given.map(readConversation);
    return { all, unsaved: all.filter((each) => !this.save(each)) };
  }
}

function around(text, at) {
  const start = Math.max(0, at - 30);
  const excerpt = text.slice(start, at + 60).replace(/\s+/g, " ");
  return start > 0 ? `…${excerpt}` : excerpt;
}
