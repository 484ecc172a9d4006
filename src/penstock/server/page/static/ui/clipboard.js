import { icon, replaceChildren } from "./dom.js";

/** Copy a text; `button` shows for a moment that it was done. */
export async function copy(text, button) {
  await write(text);
  const before = [...button.childNodes];
  replaceChildren(button, icon("check"));
  button.classList.add("done");
  setTimeout(() => {
    button.replaceChildren(...before);
    button.classList.remove("done");
  }, 1200);
}

async function write(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Over plain HTTP browsers offer the clipboard only in this older way.
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "off-screen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
