// Dark or light: as the system has it unless the user chose; kept by the browser.
import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const kept = localStorage.getItem("amqpd.theme");

export const theme = signal<Theme>(kept === "light" || kept === "dark" ? kept : "auto");
const system = matchMedia("(prefers-color-scheme: dark)");
/** What is shown now; charts are drawn anew when it changes. */
export const dark = signal(false);

effect(() => {
  const chosen = theme.value;
  if (chosen === "auto") {
    localStorage.removeItem("amqpd.theme");
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem("amqpd.theme", chosen);
    document.documentElement.dataset["theme"] = chosen;
  }
  dark.value = chosen === "auto" ? system.matches : chosen === "dark";
});
system.addEventListener("change", () => {
  if (theme.peek() === "auto") dark.value = system.matches;
});
