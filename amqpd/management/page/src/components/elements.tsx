// Small elements that all pages use.
import type { ComponentChildren } from "preact";
import { errorText, UnreachableError } from "../api/client";
import { href, route } from "../shell/router";

// Control characters, characters without width, and those that change the direction of text.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Replace invisible characters and those that change the direction of text by their codes. */
export function showInvisible(text: string): string {
  return text.replace(INVISIBLE, (sign) => `‹${sign.charCodeAt(0).toString(16).padStart(2, "0")}›`);
}

/** Make leading and trailing spaces visible. A link of spaces alone could not be clicked. */
const showOuterSpaces = (text: string): string => text.replace(/^ +| +$/g, (spaces) => "‹20›".repeat(spaces.length));

/** A name of a queue, user, header or other object, which may hold any character. */
export function Name({ children }: { children: string }) {
  return <bdi class="name">{children === "" ? <i>(empty)</i> : showOuterSpaces(showInvisible(children))}</bdi>;
}

export function NameLink({ path, children, query }: { path: (string | number)[]; children: string; query?: Record<string, string> }) {
  return (
    <a href={href(path, query)}>
      <Name>{children}</Name>
    </a>
  );
}

export function exchangeName(name: string): string {
  return name || "(AMQP default)";
}

/** Return the name of an exchange as the paths of the API and the page have it. */
export function exchangeInPath(name: string): string {
  return name || "amq.default";
}

/** `kind` says what the name belongs to: "Queue". */
export function PageTitle({ kind, children, aside }: { kind?: string; children: string; aside?: ComponentChildren }) {
  return (
    <div class="title">
      <h1>
        {kind && <span class="kind">{kind} </span>}
        {kind ? <Name>{children}</Name> : children}
      </h1>
      {aside}
    </div>
  );
}

/** Shows why a request failed. The shell shows for the whole page that the broker is unreachable. */
export function ErrorMessage({ error }: { error: unknown }) {
  return error === undefined || error instanceof UnreachableError ? null : (
    <p role="alert" class="failure">
      {errorText(error)}
    </p>
  );
}

/** Shown when a script cannot be loaded: the broker is unreachable or has another build of the page. */
export function LoadError() {
  return (
    <div role="alert" class="failure">
      <p>This part of the page cannot be loaded: the broker is unreachable or was updated.</p>
      <button onClick={() => location.reload()}>Reload the page</button>
    </div>
  );
}

export function Loading() {
  return <p class="loading">Loading …</p>;
}

export function Badge({ kind = "", children, title }: { kind?: "" | "good" | "bad" | "warn"; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${kind}`} title={title}>
      {children}
    </span>
  );
}

/** A list of names and values. Undefined values are left out. */
export function Facts({ facts }: { facts: [string, ComponentChildren | undefined][] }) {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function KeyValues({ values, none = "none" }: { values: Record<string, unknown>; none?: string }) {
  const entries = Object.entries(values);
  if (!entries.length) return <>{none}</>;
  return (
    <ul class="key-values">
      {entries.map(([name, value]) => (
        <li key={name}>
          <Name>{name}</Name> = {value === "" ? <i>(empty)</i> : <code>{showInvisible(typeof value === "string" ? value : JSON.stringify(value))}</code>}
        </li>
      ))}
    </ul>
  );
}

/** Names the nodes of a cluster whose data are missing from an answer. */
export function MissingNodes({ nodes }: { nodes: string[] | undefined }) {
  if (!nodes?.length) return null;
  return (
    <p role="alert" class="warning">
      {nodes.length === 1 ? "A node does not answer" : "Nodes do not answer"}, so {nodes.length === 1 ? "its data are" : "their data are"} missing here: {nodes.map((node) => [<Name key={node}>{node}</Name>, " "])}
    </p>
  );
}

export function Section({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="card">
      <div class="title">
        <h2>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

const PATHS = {
  menu: "M3 6h18M3 12h18M3 18h18",
  close: "M5 5l14 14M19 5L5 19",
  up: "M6 15l6-6 6 6",
  down: "M6 9l6 6 6-6",
} as const;

/** An icon without a text of its own. A button with only an icon needs an aria-label. */
export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export interface Tab {
  id: string;
  title: string;
  body: () => ComponentChildren;
}

/** Tabs as links: the query of the address names the open tab. Without one the first is open. */
export function Tabs({ tabs, label }: { tabs: Tab[]; label: string }) {
  const tabId = route.value.query.get("tab");
  const open = tabs.find((tab) => tab.id === tabId) ?? tabs[0];
  return (
    <>
      <nav class="tabs" aria-label={label}>
        {tabs.map((tab, index) => (
          <a key={tab.id} href={href(route.value.path, { tab: index ? tab.id : undefined })} aria-current={tab === open ? "page" : undefined}>
            {tab.title}
          </a>
        ))}
      </nav>
      <div key={open?.id} class="stack">{open?.body()}</div>
    </>
  );
}
