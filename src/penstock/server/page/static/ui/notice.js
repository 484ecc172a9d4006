import { element, iconButton, replaceChildren } from "./dom.js";

const SHOWN_MS = 8000;
let timer;

/** Show a short message at the foot of the page, with a button where something can be done about it. */
export function notice(text, action = null) {
  const region = document.getElementById("notices");
  clearTimeout(timer);
  const hide = () => region.replaceChildren();
  replaceChildren(
    region,
    element(
      "div",
      { className: "notice" },
      element("span", {}, text),
      action &&
        element("button", { type: "button", on: { click: () => (hide(), action.run()) } }, action.label),
      iconButton("close", "Dismiss", hide),
    ),
  );
  timer = setTimeout(hide, SHOWN_MS);
}
