// The page's start: who is logged in, then the shell with the page that the address names.
import { render } from "preact";
import { findPage, loadPage } from "./shell/pages";
import { refreshIntervalS } from "./shell/preferences";
import { route } from "./shell/router";
import { loadSession, session } from "./shell/session";
import { Shell } from "./shell/shell";

// Fetched beside the first question, not behind its answer.
void loadPage(findPage(route.peek().path).page).catch(() => undefined);

async function start(): Promise<void> {
  try {
    await loadSession();
  } catch {
    // No answer: the shell says so, and this asks again.
    if (session.peek() === undefined) setTimeout(() => void start(), Math.max(1, refreshIntervalS.peek()) * 500);
  }
}

render(<Shell />, document.getElementById("page")!);
void start();
