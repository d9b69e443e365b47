// Preferences of the user, stored in the browser: theme, refresh interval, virtual host.
import { effect, signal } from "@preact/signals";
import { request } from "../api/client";

export type Theme = "auto" | "light" | "dark";
const storedTheme = localStorage.getItem("amqpd.theme");

export const theme = signal<Theme>(storedTheme === "light" || storedTheme === "dark" ? storedTheme : "auto");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
/** The colours in use. Charts are redrawn when this changes. */
export const isDark = signal(false);

effect(() => {
  const chosen = theme.value;
  if (chosen === "auto") {
    localStorage.removeItem("amqpd.theme");
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem("amqpd.theme", chosen);
    document.documentElement.dataset["theme"] = chosen;
  }
  isDark.value = chosen === "auto" ? systemDark.matches : chosen === "dark";
});
systemDark.addEventListener("change", () => {
  if (theme.peek() === "auto") isDark.value = systemDark.matches;
});

export const REFRESH_INTERVALS_S: readonly number[] = [3, 10, 30, 0];
const storedInterval = Number(localStorage.getItem("amqpd.refresh") ?? REFRESH_INTERVALS_S[0]);
/** Seconds between two refreshes; 0 is paused. */
export const refreshIntervalS = signal(REFRESH_INTERVALS_S.includes(storedInterval) ? storedInterval : REFRESH_INTERVALS_S[0]!);

export function setRefreshInterval(seconds: number): void {
  refreshIntervalS.value = seconds;
  localStorage.setItem("amqpd.refresh", String(seconds));
}

/** The select has so many options. If there are more, it opens a searchable list. */
const VHOST_OPTIONS_MAX = 100;

/** Selected virtual host; empty for all. */
export const selectedVhost = signal(localStorage.getItem("amqpd.vhost") ?? "");
/** Names of the first VHOST_OPTIONS_MAX virtual hosts. Loaded after login and when the select is opened. */
export const vhostOptions = signal<string[]>([]);
export const vhostCount = signal(0);

export function selectVhost(name: string): void {
  selectedVhost.value = name;
  localStorage.setItem("amqpd.vhost", name);
}

interface VhostPage {
  items: { name: string }[];
  total_count: number;
}

const fetchVhosts = (query: Record<string, string>): Promise<VhostPage> => request<VhostPage>("GET", `/api/vhosts?${new URLSearchParams({ page: "1", columns: "name", sort: "name", ...query })}`);

export async function loadVhosts(): Promise<void> {
  const found = await fetchVhosts({ page_size: String(VHOST_OPTIONS_MAX) });
  vhostOptions.value = found.items.map((each) => each.name);
  vhostCount.value = found.total_count;
  const chosen = selectedVhost.peek();
  if (chosen && !vhostOptions.peek().includes(chosen) && !(await vhostExists(chosen))) selectVhost("");
}

async function vhostExists(name: string): Promise<boolean> {
  if (vhostCount.peek() <= VHOST_OPTIONS_MAX) return false;
  const pattern = name.replace(/[^\w]/gu, (sign) => `\\x{${sign.codePointAt(0)!.toString(16)}}`);
  return (await fetchVhosts({ page_size: "1", name: `^${pattern}$`, use_regex: "true" })).items.length > 0;
}
