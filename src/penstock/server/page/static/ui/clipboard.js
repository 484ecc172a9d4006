import { icon, replaceChildren } from "./dom.js";
import { notice } from "./notice.js";

/** Copy a text; `button` shows for a moment that it was done. */
export async function copy(text, button) {
  try {
    await write(text);
  } catch {
    notice("The browser did not let the text be copied.");
    return;
  }
  if (button.classList.contains("done")) return;
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
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("not copied");
}
