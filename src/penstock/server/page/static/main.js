// The page: a frame with three views, and what keeps them up to date.

import { ApiView } from "./api/view.js";
import { Store } from "./chat/store.js";
import { ChatView } from "./chat/view.js";
import { CompletionView } from "./completion/view.js";
import { Feed } from "./engine/feed.js";
import { History } from "./engine/history.js";
import { EngineView } from "./engine/view.js";
import { Frame } from "./frame.js";
import { Api, ConnectionLost, ServerError } from "./server/api.js";
import { askForKey } from "./server/key_dialog.js";
import { announce } from "./ui/announce.js";
import { notice } from "./ui/notice.js";
import { browserStorage } from "./ui/storage.js";

const RETRY_MS = 2000;

async function start() {
  const frame = new Frame(document.getElementById("frame"));
  const api = new Api(askForKey);
  const card = await modelCard(api, frame);
  const history = new History();
  const storage = browserStorage();
  const isChat = card.made_for === "chat";
  const engine = new EngineView(history, card);
  frame.show({
    "/": isChat ? new ChatView(api, card, new Store(storage)) : new CompletionView(api, card, storage),
    "/engine": engine,
    "/docs": new ApiView(api),
  });
  new Feed(api, {
    heard: (snapshot) => {
      history.add(snapshot);
      frame.tell(history);
      engine.draw();
      if (snapshot.model !== card.id) frame.outdated(snapshot.model);
    },
    lost: (message) => frame.lost(message),
    found: () => {
      frame.found();
      announce("The server is back.");
    },
  });
}

/** The model that is served, once the server answers. */
async function modelCard(api, frame) {
  for (;;) {
    try {
      const { data } = await api.json("/v1/models");
      frame.found();
      return data[0];
    } catch (error) {
      if (!(error instanceof ServerError || error instanceof ConnectionLost)) throw error;
      frame.lost(error.message);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** What goes wrong is said, and not only to the console. */
function tellOfFailures() {
  const tell = (error) => notice(`The page failed: ${error?.message ?? error}`);
  window.addEventListener("error", (event) => tell(event.error ?? event.message));
  window.addEventListener("unhandledrejection", (event) => tell(event.reason));
}

tellOfFailures();
start();
