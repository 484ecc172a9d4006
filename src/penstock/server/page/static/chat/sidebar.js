import { element, iconButton, replaceChildren } from "../ui/dom.js";
import { ago } from "../ui/format.js";
import { afterPause } from "../ui/frames.js";

/** The list of conversations, with a search over what was said in them. */
export class Sidebar {
  constructor(store, { open, create, remove, importing, exporting }) {
    this.store = store;
    this.actions = { open, remove };
    this.current = null;
    this.shown = ""; // what the list says
    this.search = element("input", {
      type: "search",
      placeholder: "Search conversations",
      attributes: { "aria-label": "Search conversations" },
      on: {
        input: afterPause(120, () => this.show()),
        keydown: (event) => this.#key(event),
      },
    });
    this.picker = element("input", { type: "file", accept: "application/json,.json", hidden: true });
    this.picker.addEventListener("change", async () => {
      const [file] = this.picker.files;
      if (file) importing(await file.text());
      this.picker.value = "";
    });
    this.list = element("ul", { className: "conversations", attributes: { "aria-label": "Conversations" } });
    this.element = element(
      "aside",
      { className: "sidebar", id: "sidebar", attributes: { "aria-label": "Conversations" } },
      element(
        "div",
        { className: "sidebar-head" },
        element("button", { type: "button", className: "new", on: { click: create } }, "New conversation"),
        iconButton("open", "Import conversations", () => this.picker.click()),
        iconButton("save", "Export all conversations", exporting),
        this.picker,
      ),
      this.search,
      this.list,
    );
  }

  show(current = this.current) {
    this.current = current;
    const found = this.store.search(this.search.value).map(({ conversation, excerpt }) => ({
      conversation,
      title: conversation.title || "Untitled",
      note: excerpt || ago(conversation.updated),
    }));
    const asked = this.search.value !== "";
    const shown = JSON.stringify([
      asked,
      current,
      found.map(({ conversation, title, note }) => [conversation.id, title, note]),
    ]);
    // Made anew under the pointer, a button would miss the click that has begun on it.
    if (shown === this.shown) return;
    this.shown = shown;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    replaceChildren(
      this.list,
      found.map((each) => this.#entry(each)),
      found.length === 0 &&
        element(
          "li",
          { className: "note" },
          asked ? "Nothing was found." : "What you ask is kept in this browser alone.",
        ),
    );
    if (focused) this.list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  #entry({ conversation, title, note }) {
    const isCurrent = conversation.id === this.current;
    return element(
      "li",
      { className: isCurrent ? "current" : "" },
      element(
        "button",
        {
          type: "button",
          className: "conversation",
          data: { id: conversation.id },
          attributes: { "aria-current": isCurrent ? "true" : null },
          on: { click: () => this.actions.open(conversation) },
        },
        element("span", { className: "title" }, title),
        element("span", { className: "note" }, note),
      ),
      iconButton("trash", `Delete ${title}`, () => this.actions.remove(conversation)),
    );
  }

  #key(event) {
    if (event.key === "Escape" && this.search.value) {
      event.stopPropagation();
      this.search.value = "";
      this.show();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      this.list.querySelector("button")?.focus();
    }
  }
}
