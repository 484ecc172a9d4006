import { kvShare } from "./engine/panels.js";
import { element, iconButton, replaceChildren } from "./ui/dom.js";
import { short, whole } from "./ui/format.js";

const LABELS = { "/": "Chat", "/engine": "Engine", "/docs": "API" };
const SPAN_S = 2;

/** What is around the views: their links, the engine in a line, and word of a server that is gone. */
export class Frame {
  #views = null;
  #current = null;

  constructor(root) {
    this.links = Object.entries(LABELS).map(([path, label]) =>
      element("a", { href: path, on: { click: (event) => this.#go(event, path) } }, label),
    );
    this.menu = iconButton("menu", "Conversations", () => this.#toggle(), {
      className: "icon-button menu",
      attributes: { "aria-expanded": "false", "aria-controls": "sidebar" },
    });
    this.rate = element("span");
    this.sequences = element("span", { className: "less" });
    this.cache = element("span");
    this.strip = element(
      "p",
      { className: "strip", attributes: { "aria-label": "Engine" } },
      this.rate,
      this.sequences,
      this.cache,
    );
    this.trouble = element("p", { className: "trouble", hidden: true, attributes: { role: "alert" } });
    // A conversation that was chosen, or begun, is what is looked at next.
    this.main = element("main", { on: { conversation: () => this.#toggle(false) } });
    replaceChildren(
      root,
      element(
        "header",
        { className: "top" },
        this.menu,
        element(
          "a",
          { className: "brand", href: "/", on: { click: (event) => this.#go(event, "/") } },
          element("img", { src: "/page/icon.svg", alt: "", width: 20, height: 20 }),
          "Penstock",
        ),
        element("nav", { attributes: { "aria-label": "Views" } }, this.links),
        this.strip,
      ),
      this.trouble,
      this.main,
    );
    window.addEventListener("popstate", () => this.#open(location.pathname));
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Show the view of the address, out of `views` by path. */
  show(views) {
    this.#views = views;
    for (const view of Object.values(views)) this.main.append(view.element);
    this.links[0].textContent = views["/"].sidebar ? "Chat" : "Completion";
    this.#open(location.pathname);
  }

  /** Say in a line what the engine does. */
  tell(history) {
    const now = history.snapshots.at(-1);
    if (!now) return;
    const rate = history.over(SPAN_S)?.generated ?? 0;
    const { running, waiting } = now.engine;
    this.rate.textContent = `${rate >= 10 ? whole(rate) : short(rate)} tokens/s`;
    this.sequences.textContent = ` · ${whole(running)} running${waiting ? ` · ${whole(waiting)} waiting` : ""}`;
    this.cache.textContent = ` · KV ${kvShare(now)}`;
  }

  lost(message) {
    this.#tellTrouble(`No connection: ${message}. Trying again…`);
    document.body.classList.add("lost");
  }

  /** Say that the server has come back with another model than the one this page shows. */
  outdated(model) {
    this.#tellTrouble(`This server now has another model, ${model}.`, () =>
      element("button", { type: "button", on: { click: () => location.reload() } }, "Load the page again"),
    );
  }

  /** Show a text, and what `action` makes; said once, screen readers do not repeat it. */
  #tellTrouble(text, action = () => null) {
    if (this.trouble.firstChild?.textContent !== text) {
      replaceChildren(this.trouble, element("span", {}, text), action());
    }
    this.trouble.hidden = false;
  }

  found() {
    this.trouble.hidden = true;
    this.trouble.replaceChildren();
    document.body.classList.remove("lost");
  }

  #go(event, path) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    if (location.pathname !== path) history.pushState(null, "", path);
    this.#open(path);
  }

  #open(path) {
    if (!this.#views) return;
    const chosen = this.#views[path] ? path : "/";
    this.#current = this.#views[chosen];
    for (const [each, view] of Object.entries(this.#views)) {
      view.element.hidden = each !== chosen;
      view.shown = each === chosen;
    }
    for (const link of this.links) {
      if (link.pathname === chosen) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.menu.hidden = !this.#current.sidebar;
    document.title = chosen === "/" ? "Penstock" : `${LABELS[chosen]} · Penstock`;
    this.#current.focus();
  }

  #toggle(open = !document.body.classList.contains("sidebar-open")) {
    document.body.classList.toggle("sidebar-open", open);
    this.menu.setAttribute("aria-expanded", String(open));
    if (open) this.#current.sidebar.search.focus();
  }

  #key(event) {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    if (document.body.classList.contains("sidebar-open")) {
      this.#toggle(false);
      this.menu.focus();
    } else {
      this.#current?.stop?.();
    }
  }
}
