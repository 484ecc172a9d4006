// The page of the fleet: asks for the status, and shows it.

import { element, replaceChildren } from "/fleet/dom.js";

const EVERY_MS = 2000;
const WINDOW_MS = 10_000;

const summary = document.getElementById("summary");
const table = document.querySelector("table");
const rows = document.querySelector("tbody");
const router = document.getElementById("router");

/** What was told in the last seconds, the oldest first: `{ at, requests }`, by the servers' URLs. */
const past = [];

function count(value) {
  return value.toLocaleString("en");
}

function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "";
}

/** Requests a second since the oldest status that is kept; empty where the server is new. */
function rate(replica, now) {
  const first = past.find((each) => each.requests.has(replica.url));
  const seconds = first ? (now - first.at) / 1000 : 0;
  if (seconds < 1) return "";
  return ((replica.requests - first.requests.get(replica.url)) / seconds).toFixed(1);
}

function cell(text, className = "number") {
  return element("td", { className }, text);
}

function row(replica, now) {
  const where = [replica.host, replica.pid && `process ${replica.pid}`].filter(Boolean).join(", ");
  const models = replica.models ? replica.models.join(", ") : "models unknown";
  const trouble = replica.state !== "ready" && replica.trouble;
  return element(
    "tr",
    {},
    element(
      "td",
      {},
      element("span", { className: "name" }, replica.url),
      element("span", { className: "note" }, [where, models].filter(Boolean).join(" · ")),
    ),
    element(
      "td",
      {},
      element("span", { className: `state ${replica.state}` }, replica.state),
      trouble && element("span", { className: "note trouble" }, trouble),
      replica.state === "ready" &&
        !replica.cache_followed &&
        element("span", { className: "note" }, "its cache is assumed"),
    ),
    cell(replica.build.slice(0, 7), "name"),
    cell(count(replica.prefill_tokens)),
    cell(count(replica.decoding)),
    cell(rate(replica, now)),
    cell(count(replica.requests)),
    cell(share(replica.prompt_tokens_cached, replica.prompt_tokens)),
    cell(count(replica.failures), replica.failures ? "number trouble" : "number"),
    cell(count(replica.resumed_streams)),
  );
}

function show(status) {
  const now = performance.now();
  const ready = status.replicas.filter((replica) => replica.state === "ready").length;
  const said = [
    `${ready} of ${status.replicas.length} servers ready`,
    `${count(status.open)} requests open`,
    status.waiting && `${count(status.waiting)} of them wait for a server`,
  ];
  summary.textContent = said.filter(Boolean).join(", ");
  summary.classList.toggle("trouble", ready === 0);
  replaceChildren(rows, ...status.replicas.map((replica) => row(replica, now)));
  table.hidden = false;
  router.textContent = `Router ${status.router}, policy ${status.policy}, Penstock ${status.version}`;
  past.push({ at: now, requests: new Map(status.replicas.map((r) => [r.url, r.requests])) });
  while (past.length > 1 && past[0].at < now - WINDOW_MS) past.shift();
}

async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/fleet/status", { cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      show(await answer.json());
    } catch (error) {
      summary.textContent = `The router does not answer: ${error.message}`;
      summary.classList.add("trouble");
    }
  }
  setTimeout(look, EVERY_MS);
}

look();
document.addEventListener("visibilitychange", () => past.splice(0));
