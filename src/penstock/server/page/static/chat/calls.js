// Calls of tools in an answer, which a stop or a limit of tokens may cut in the middle.

/** The calls of a message but for those that were cut: servers take only JSON objects as arguments. */
export function wholeCalls(node) {
  return node?.calls?.filter((call) => call && isObject(call.text)) ?? [];
}

function isObject(json) {
  try {
    const value = JSON.parse(json);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

/** Make text of the calls that an answer was cut in; returns what that adds to its content. */
export function endCalls(node) {
  const whole = wholeCalls(node);
  const cut = (node.calls ?? []).filter((call) => call && !whole.includes(call));
  if (whole.length) node.calls = whole;
  else delete node.calls;
  const texts = cut.map(({ name, text }) => `${name} ${text}`.trim()).filter(Boolean);
  const added = texts.map((text) => `\n\n${text}`).join("");
  const shown = node.content ? added : added.trimStart();
  node.content += shown;
  return shown;
}
