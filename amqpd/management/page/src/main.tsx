// Start of the page: load the session, then render the shell.
import { render } from "preact";
import { findPage, loadPage } from "./shell/pages";
import { refreshIntervalS } from "./shell/preferences";
import { route } from "./shell/router";
import { loadSession, session } from "./shell/session";
import { Shell } from "./shell/shell";

// Load the page's module in parallel with the session.
void loadPage(findPage(route.peek().path).page).catch(() => undefined);

async function start(): Promise<void> {
  try {
    await loadSession();
  } catch {
    // The broker does not answer: the shell shows it, and this retries.
    if (session.peek() === undefined) setTimeout(() => void start(), Math.max(1, refreshIntervalS.peek()) * 500);
  }
}

render(<Shell />, document.getElementById("page")!);
void start();
