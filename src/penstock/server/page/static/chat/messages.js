import { element } from "../ui/dom.js";
import { MessageView } from "./message.js";

const NEAR = 48; // pixels from the end that still count as there

/** The messages of a conversation, in a part of the page that scrolls. */
export class MessageList {
  #atEnd = true;

  constructor(actions) {
    this.actions = actions;
    this.views = new Map();
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

  /** Show the conversation's path; the views of messages that are shown already stay. */
  show(conversation, empty) {
    const path = conversation.path();
    const before = this.views;
    this.views = new Map();
    for (const node of path) {
      const siblings = conversation.siblings(node);
      const had = before.get(node.id);
      const same = had && (had.live || had.siblings.length === siblings.length);
      this.views.set(node.id, same ? had : new MessageView(node, siblings, this.actions));
    }
    const shown = [...this.views.values()].map((view) => view.element);
    this.list.replaceChildren(...(shown.length ? shown : [empty]));
  }

  /** Add the view of a message that is about to come. */
  begin(conversation, node) {
    const options = { live: true, moved: () => this.follow() };
    const view = new MessageView(node, conversation.siblings(node), this.actions, options);
    this.views.set(node.id, view);
    this.show(conversation, null);
    this.toEnd();
    return view;
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
