// The frame of all pages: where one is, who one is, whether the broker answers; and the page within it.
import { useSignal, useSignalEffect } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { silentSince, sentence, unspeakable, UNSPEAKABLE } from "../api/client";
import { Icon } from "../components/icon";
import { forgetNotices, Notices, notify } from "../components/notices";
import { Unfetched, Waiting } from "../components/elements";
import { VhostChoice, VhostSearch } from "../components/vhost-select";
import { Login } from "./login";
import { componentOf, fetchPage, PAGES, pageOf, type Page, type PageProps } from "./pages";
import { EVERY_S, everyS, painted, setEvery } from "./poll";
import { href, place } from "./router";
import { has, logout, orAbove, session } from "./session";
import { theme, type Theme } from "./theme";
import { choose, lookForVhosts, vhost, vhosts } from "./preferences";

export function Shell() {
  const who = session.value;
  if (who === undefined) return silentSince.value === null ? null : <Silent />;
  if (who === null) {
    return (
      <>
        <Silent />
        <Login />
      </>
    );
  }
  return <Frame key={who.name} />;
}

function Frame() {
  const menu = useSignal(false);
  useEffect(() => {
    let ended = false;
    void painted()
      .then(() => (ended ? undefined : lookForVhosts()))
      .catch((error: unknown) => notify(sentence(error), "bad"));
    // The next user of this tab sees nothing of the one before.
    return () => {
      ended = true;
      forgetNotices();
      vhosts.value = [];
    };
  }, []);
  useSignalEffect(() => {
    void place.value;
    menu.value = false;
  });
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <button class="quiet menu" aria-expanded={menu.value} aria-controls="nav" aria-label="Menu" onClick={() => (menu.value = !menu.value)}>
          <Icon name="menu" />
        </button>
        <a class="brand" href="#/">
          amqpd
        </a>
        <span class="where" title="Cluster and node">
          {session.value?.cluster_name}
        </span>
        <Controls />
      </header>
      <Silent />
      <nav id="nav" class={menu.value ? "open" : ""} aria-label="Pages">
        <Navigation />
      </nav>
      <main id="main" tabIndex={-1}>
        <Opened />
      </main>
      <Notices />
      <VhostSearch />
    </div>
  );
}

function Controls() {
  const out = (): void => {
    logout().catch((error: unknown) => notify(sentence(error), "bad"));
  };
  return (
    <div class="controls">
      <label>
        <span class="hidden">Virtual host</span>
        <VhostChoice value={vhost.value} onChange={choose} all="All virtual hosts" />
      </label>
      <label>
        <span class="hidden">Refresh</span>
        <select value={everyS.value} onChange={(event) => setEvery(Number(event.currentTarget.value))}>
          {EVERY_S.map((seconds) => (
            <option key={seconds} value={seconds}>
              {seconds ? `every ${seconds} s` : "paused"}
            </option>
          ))}
        </select>
      </label>
      <label>
        <span class="hidden">Colours</span>
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          <option value="auto">system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
      <span class="user" title={`Tags: ${session.value?.tags.join(", ") || "none"}`}>
        {session.value?.name}
      </span>
      <button class="quiet" onClick={out}>
        Log out
      </button>
    </div>
  );
}

function Navigation() {
  const here = pageOf(place.value.path).page;
  const groups = [...new Set(PAGES.map((page) => page.group).filter((group) => group !== undefined))];
  return (
    <>
      {groups.map((group) => {
        const pages = PAGES.filter((page) => page.group === group && has(page.role));
        if (!pages.length) return null;
        return (
          <section key={group}>
            <h2>{group}</h2>
            <ul>
              {pages.map((page) => (
                <li key={page.path}>
                  <a href={href(page.path.split("/"))} aria-current={isHere(page, here) ? "page" : undefined}>
                    {page.title}
                  </a>
                </li>
              ))}
            </ul>
          </section>
        );
      })}
    </>
  );
}

/** A thing's own page belongs to the list it stands in. */
function isHere(page: Page, here: Page): boolean {
  return page.path === here.path || (page.path !== "" && here.path.startsWith(`${page.path}/`));
}

function Silent() {
  const since = silentSince.value;
  const told = useRef(false);
  useEffect(() => {
    if (since !== null) told.current = true;
    else if (told.current) {
      told.current = false;
      notify("The broker answers again.", "good");
    }
  }, [since]);
  return (
    <div role="alert" class={since === null ? "hidden" : "silent"}>
      {since === null
        ? ""
        : `The broker has not answered since ${new Date(since).toTimeString().slice(0, 8)}. What you see is from before; this page asks on, every second.`}
    </div>
  );
}

/** The page of the address, once its module is there. */
function Opened() {
  const { page, names } = pageOf(place.value.path);
  const [, setFetched] = useState<Page>();
  const [failed, setFailed] = useState("");
  const key = place.value.path.map(encodeURIComponent).join("/");
  const shown = useRef<string>();
  useEffect(() => {
    let current = true;
    setFailed("");
    // Also where it is there by now: it may have come between this render and here.
    (componentOf(page) ? Promise.resolve() : fetchPage(page)).then(
      () => current && setFetched(page),
      () => current && setFailed(page.title),
    );
    return () => {
      current = false;
    };
  }, [page]);
  useEffect(() => {
    const name = names.at(-1);
    document.title = `${name ? `${name} · ` : ""}${page.title} · amqpd`;
    // Another page: whoever reads by keyboard or ear is at its beginning.
    if (shown.current !== undefined && shown.current !== key) {
      scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    }
    shown.current = key;
  }, [key]);
  if (failed) {
    return <Unfetched />;
  }
  if (!has(page.role)) return <p class="failure">This page takes the user tag {orAbove(page.role)}; yours are not enough.</p>;
  if (names.some(unspeakable)) return <p class="failure">{UNSPEAKABLE}</p>;
  const Component = componentOf(page);
  return Component ? <Guarded key={key} Component={Component} names={names} /> : <Waiting />;
}

function Guarded({ Component, names }: { Component: ComponentType<PageProps>; names: string[] }) {
  const [error, reset] = useErrorBoundary((caught) => console.error(caught));
  if (error) {
    return (
      <div role="alert" class="failure">
        <p>The page has stumbled over what it got: {error instanceof Error ? error.message : String(error)}</p>
        <button onClick={reset}>Try again</button>
      </div>
    );
  }
  return <Component names={names} />;
}
