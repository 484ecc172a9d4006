import { element } from "../ui/dom.js";
import { MessageView } from "./message.js";

const NEAR = 48; // pixels from the end that still count as there

/** The messages of a conversation, in a part of the page that scrolls. */
export class MessageList {
  #atEnd = true;

  constructor(actions) {
    this.actions = actions;
    this.views = new Map(); // those that are shown, by their messages' ids
    this.live = new Map(); // those of answers that come: while another branch is shown, too
    this.list = element("div", {
      className: "messages",
      attributes: { role: "log", "aria-live": "off", "aria-label": "Conversation" },
    });
    this.element = element("div", { className: "scroller", tabIndex: -1 }, this.list);
    this.element.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      this.#atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    });
    // The end moves when the window, or the field below, takes another size.
    new ResizeObserver(() => this.follow()).observe(this.element);
  }

  /**
   * Show the conversation's path. The views of messages that are shown already stay, and so does what
   * has the focus in them.
   */
  show(conversation, empty) {
    const path = conversation.path();
    const before = this.views;
    this.views = new Map();
    for (const node of path) {
      const siblings = conversation.siblings(node);
      const had = this.live.get(node.id) ?? before.get(node.id);
      const same = had?.node === node && had.siblings.length === siblings.length;
      const stays = same || had?.live || had?.edited;
      this.views.set(node.id, stays ? had : new MessageView(node, siblings, this.actions));
    }
    const shown = [...this.views.values()].map((view) => view.element);
    this.#place(shown.length ? shown : [empty]);
  }

  /** Make `elements` the list's children; none of them is moved that is in its place. */
  #place(elements) {
    const wanted = new Set(elements);
    for (const each of [...this.list.children]) if (!wanted.has(each)) each.remove();
    elements.forEach((each, i) => {
      const { [i]: there } = this.list.children;
      if (there !== each) this.list.insertBefore(each, there ?? null);
    });
  }

  /** Add the view of a message that is about to come. */
  begin(conversation, node) {
    const options = { live: true, moved: () => this.follow() };
    const view = new MessageView(node, conversation.siblings(node), this.actions, options);
    this.live.set(node.id, view);
    this.show(conversation, null);
    this.toEnd();
    return view;
  }

  /** Show how an answer ended that `begin` has begun. */
  end(view) {
    view.finish();
    this.live.delete(view.node.id);
  }

  clear() {
    this.views.clear();
  }

  toEnd() {
    this.#atEnd = true;
    this.follow();
  }

  /** Stay at the end, where the reader was there. */
  follow() {
    if (this.#atEnd) this.element.scrollTop = this.element.scrollHeight;
  }
}
