// The shell of all pages: login, header, navigation, notices, and the page of the address.
import { useSignal, useSignalEffect } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { DOT_SEGMENT_TEXT, errorText, isDotSegment, unreachableSince } from "../api/client";
import { Icon, LoadError, Loading } from "../components/elements";
import { clearNotices, Notices, notify } from "../components/notices";
import { VhostSearchDialog, VhostSelect } from "../components/vhost-select";
import { Login } from "./login";
import { componentOf, findPage, loadPage, type Page, type PageProps, PAGES } from "./pages";
import { afterPaint } from "./poll";
import { loadVhosts, REFRESH_INTERVALS_S, refreshIntervalS, selectedVhost, selectVhost, setRefreshInterval, theme, type Theme, vhostOptions } from "./preferences";
import { href, route } from "./router";
import { hasTag, logout, session, tagAlternatives } from "./session";

export function Shell() {
  const user = session.value;
  if (user === undefined) return unreachableSince.value === null ? null : <UnreachableBanner />;
  if (user === null) {
    return (
      <>
        <UnreachableBanner />
        <Login />
      </>
    );
  }
  return <Frame key={user.name} />;
}

function Frame() {
  const menu = useSignal(false);
  useEffect(() => {
    let ended = false;
    void afterPaint()
      .then(() => (ended ? undefined : loadVhosts()))
      .catch((error: unknown) => notify(errorText(error), "bad"));
    // Another user in this tab must not see the notices and names of this one.
    return () => {
      ended = true;
      clearNotices();
      vhostOptions.value = [];
    };
  }, []);
  useSignalEffect(() => {
    void route.value;
    menu.value = false;
  });
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to content
      </a>
      <header class="top">
        <button class="quiet menu" aria-expanded={menu.value} aria-controls="nav" aria-label="Menu" onClick={() => (menu.value = !menu.value)}>
          <Icon name="menu" />
        </button>
        <a class="brand" href="#/">
          amqpd
        </a>
        <span class="cluster-name" title="Cluster and node">
          {session.value?.cluster_name}
        </span>
        <HeaderControls />
      </header>
      <UnreachableBanner />
      <nav id="nav" class={menu.value ? "open" : ""} aria-label="Pages">
        <Navigation />
      </nav>
      <main id="main" tabIndex={-1}>
        <CurrentPage />
      </main>
      <Notices />
      <VhostSearchDialog />
    </div>
  );
}

function HeaderControls() {
  const out = (): void => {
    logout().catch((error: unknown) => notify(errorText(error), "bad"));
  };
  return (
    <div class="controls">
      <label>
        <span class="visually-hidden">Virtual host</span>
        <VhostSelect value={selectedVhost.value} onChange={selectVhost} all="All virtual hosts" />
      </label>
      <label>
        <span class="visually-hidden">Refresh</span>
        <select value={refreshIntervalS.value} onChange={(event) => setRefreshInterval(Number(event.currentTarget.value))}>
          {REFRESH_INTERVALS_S.map((seconds) => (
            <option key={seconds} value={seconds}>
              {seconds ? `every ${seconds} s` : "paused"}
            </option>
          ))}
        </select>
      </label>
      <label>
        <span class="visually-hidden">Colours</span>
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
  const here = findPage(route.value.path).page;
  const groups = [...new Set(PAGES.map((page) => page.group).filter((group) => group !== undefined))];
  return (
    <>
      {groups.map((group) => {
        const pages = PAGES.filter((page) => page.group === group && hasTag(page.role) && (!page.kafka || session.value?.kafka));
        if (!pages.length) return null;
        return (
          <section key={group}>
            <h2>{group}</h2>
            <ul>
              {pages.map((page) => (
                <li key={page.path}>
                  <a href={href(page.path.split("/"))} aria-current={isCurrent(page, here) ? "page" : undefined}>
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

/** The page of a single object belongs to its list. */
function isCurrent(page: Page, here: Page): boolean {
  return page.path === here.path || (page.path !== "" && here.path.startsWith(`${page.path}/`));
}

function UnreachableBanner() {
  const since = unreachableSince.value;
  const wasUnreachable = useRef(false);
  useEffect(() => {
    if (since !== null) wasUnreachable.current = true;
    else if (wasUnreachable.current) {
      wasUnreachable.current = false;
      notify("The broker answers again.", "good");
    }
  }, [since]);
  return (
    <div role="alert" class={since === null ? "visually-hidden" : "unreachable"}>
      {since === null
        ? ""
        : `The broker has not answered since ${new Date(since).toTimeString().slice(0, 8)}. The page shows older data and retries every second.`}
    </div>
  );
}

/** The page of the current route, once its module is loaded. */
function CurrentPage() {
  const { page, names } = findPage(route.value.path);
  const [, setFetched] = useState<Page>();
  const [failed, setFailed] = useState("");
  const key = route.value.path.map(encodeURIComponent).join("/");
  const shown = useRef<string>();
  useEffect(() => {
    let current = true;
    setFailed("");
    // Set it also if it is loaded already: that may have happened since this render.
    (componentOf(page) ? Promise.resolve() : loadPage(page)).then(
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
    // On another page, keyboard and screen reader users start at its top.
    if (shown.current !== undefined && shown.current !== key) {
      scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    }
    shown.current = key;
  }, [key]);
  if (failed) {
    return <LoadError />;
  }
  if (!hasTag(page.role)) return <p class="failure">This page needs the user tag {tagAlternatives(page.role)}.</p>;
  if (names.some(isDotSegment)) return <p class="failure">{DOT_SEGMENT_TEXT}</p>;
  const Component = componentOf(page);
  return Component ? <PageErrorBoundary key={key} Component={Component} names={names} /> : <Loading />;
}

function PageErrorBoundary({ Component, names }: { Component: ComponentType<PageProps>; names: string[] }) {
  const [error, reset] = useErrorBoundary((caught) => console.error(caught));
  if (error) {
    return (
      <div role="alert" class="failure">
        <p>The page failed to show this data: {error instanceof Error ? error.message : String(error)}</p>
        <button onClick={reset}>Try again</button>
      </div>
    );
  }
  return <Component names={names} />;
}
