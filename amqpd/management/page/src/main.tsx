// The page's start: who is logged in, then the shell with the page that the address names.
import { render } from "preact";
import { everyS } from "./shell/poll";
import { look, session } from "./shell/session";
import { Shell } from "./shell/shell";
import { fetchPage, pageOf } from "./shell/pages";
import { place } from "./shell/router";
import "./shell/theme";

// Fetched beside the first question, not behind its answer.
void fetchPage(pageOf(place.peek().path).page).catch(() => undefined);

async function start(): Promise<void> {
  try {
    await look();
  } catch {
    // No answer: the shell says so, and this asks again.
    if (session.peek() === undefined) setTimeout(() => void start(), Math.max(1, everyS.peek()) * 500);
  }
}

render(<Shell />, document.getElementById("page")!);
void start();
